"""The stationary policy of mixed occupancies in a model of long-run averages.

The occupancy of a mixture is that of the policy π(a|s) ∝ x(s, a) if the chain of that policy has one recurrent class. A
mixture of policies that stay in different parts of the model has several, and the start decides where it ends. A little
of the uniform policy's occupancy, mixed in, joins them: where that policy goes everywhere, so does the sum, and
its averages are again exactly those of the mixture.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import PairTable
from cmdpkit.evaluation.average import reachable, recurrent_classes
from cmdpkit.evaluation.bounds import visited
from cmdpkit.evaluation.chain import mixed_chain
from cmdpkit.evaluation.gains import policy_system
from cmdpkit.model import CMDP
from cmdpkit.policy import TabularPolicy

SHARE = 0.1
"""Of the uniform policy, as a part of `tol`: what it costs and what it violates must be allowed."""

LEAST = 1e-9
"""Smallest tolerance for which parts of a model are joined: classes that are hardly ever left defeat rounding."""


def stationary_policy(cmdp: CMDP, occupancy: PairTable, fallback: PairTable, tol: float) -> TabularPolicy:
    """The policy of an occupancy that sums to one, with `fallback` or the uniform policy where it is zero."""
    pairs, occupancy = cmdp.pairs, np.maximum(occupancy, 0.0)
    uniform = pairs.uniform()
    policies = [TabularPolicy.from_occupancy(pairs, occupancy, other) for other in (fallback, uniform)]
    for policy in policies:
        if _has(cmdp, policy, occupancy):
            return policy
    if len(ends(cmdp, uniform)) > 1:
        return policies[0]
    share = SHARE * max(tol, LEAST)
    everywhere = pairs.over(policy_system(cmdp, uniform).state_occupancy()) * uniform
    return TabularPolicy.from_occupancy(pairs, (1.0 - share) * occupancy + share * everywhere, uniform)


def ends(cmdp: CMDP, pi: PairTable) -> list[int]:
    """One state of each recurrent class that a policy can end in."""
    chain = mixed_chain(cmdp, (pi > 0.0).astype(float))
    _, label = recurrent_classes(chain)
    inside = np.flatnonzero(reachable(chain, cmdp.initial) & (label >= 0))
    return [int(inside[k]) for k in np.unique(label[inside], return_index=True)[1]]


def separate_parts(cmdp: CMDP) -> list[int]:
    """One state of each part of the model in which a policy can stay for ever, if they do not communicate.

    These are the classes of the uniform policy and, among the states that it leaves for ever, those which a policy
    need not leave.
    """
    pairs = cmdp.pairs
    _, label = recurrent_classes(mixed_chain(cmdp, pairs.uniform()))
    stay = _can_stay(cmdp, visited(cmdp) & (label < 0))
    return [*ends(cmdp, pairs.uniform()), *map(int, np.flatnonzero(stay)[:1])]


def comes_back(cmdp: CMDP) -> bool:
    """Whether there is a state to which every policy comes back: its chain then has one class."""
    seen = visited(cmdp)
    others = (seen & (np.arange(cmdp.states) != s) for s in np.flatnonzero(seen))
    return any(not _can_stay(cmdp, states).any() for states in others)


def _can_stay(cmdp: CMDP, states: Any) -> Any:
    """(S,) booleans: those of some states in which some policy stays among them for ever."""
    pairs, matrix = cmdp.pairs, sp.csr_array(cmdp.transitions)
    while states.any():
        # Pairs that lead outside, and states in which all of them do
        leaves = (matrix @ (~states).astype(float)) > 0.0
        kept = states & (pairs.min(pairs.like(leaves.astype(float))) == 0.0)
        if (kept == states).all():
            break
        states = kept
    return states


def _has(cmdp: CMDP, policy: TabularPolicy, occupancy: PairTable) -> bool:
    """Whether this is the policy's own occupancy: it ends in one class, and the occupancy is there."""
    chain = mixed_chain(cmdp, (policy.pi > 0.0).astype(float))
    _, label = recurrent_classes(chain)
    classes = np.unique(label[reachable(chain, cmdp.initial) & (label >= 0)])
    inside = cmdp.pairs.sum(occupancy)[label == classes[0]].sum()
    return bool(classes.size == 1 and inside >= (1.0 - 1e-9) * occupancy.sum())
