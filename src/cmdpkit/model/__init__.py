"""Models: states, actions, transitions, an objective and limits."""

from cmdpkit.model.blocks import Block
from cmdpkit.model.cmdp import CMDP, check_model
from cmdpkit.model.criterion import check_criterion, refuse_averages
from cmdpkit.model.labels import Label, check_labels
from cmdpkit.model.limits import AtLeast, AtMost, Between, Equal, Limit, OneSided, check_limits
from cmdpkit.model.pairs import Pairs, check_available
from cmdpkit.model.partition import Part, parts
from cmdpkit.model.problem import Problem
from cmdpkit.model.sharded import ShardedCMDP
from cmdpkit.model.stages import Stage, StagedTransitions, as_csr

__all__ = [
    "CMDP",
    "AtLeast",
    "AtMost",
    "Between",
    "Block",
    "Equal",
    "Label",
    "Limit",
    "OneSided",
    "Pairs",
    "Part",
    "Problem",
    "ShardedCMDP",
    "Stage",
    "StagedTransitions",
    "as_csr",
    "check_available",
    "check_criterion",
    "check_labels",
    "check_limits",
    "check_model",
    "parts",
    "refuse_averages",
]
