"""Policies: tables of probabilities, mixtures of them, one table per stage, and blocks in files."""

from cmdpkit.policy.mixture import MixturePolicy, as_any_policy
from cmdpkit.policy.sharded import ShardedPolicy
from cmdpkit.policy.staged import StagedPolicy, load_policy, lowered_policy, raised_policy
from cmdpkit.policy.tabular import TabularPolicy, as_policy

__all__ = [
    "MixturePolicy",
    "ShardedPolicy",
    "StagedPolicy",
    "TabularPolicy",
    "as_any_policy",
    "as_policy",
    "load_policy",
    "lowered_policy",
    "raised_policy",
]
