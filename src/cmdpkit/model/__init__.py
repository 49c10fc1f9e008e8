"""Models: states, actions, transitions, an objective and limits."""

from cmdpkit.model.cmdp import CMDP, check_model
from cmdpkit.model.limits import AtLeast, AtMost, Limit, check_limits
from cmdpkit.model.problem import Problem

__all__ = ["CMDP", "AtLeast", "AtMost", "Limit", "Problem", "check_limits", "check_model"]
