"""Policy evaluation: the linear systems of a policy and their solvers."""

from cmdpkit.evaluation.evaluate import Evaluation, evaluate
from cmdpkit.evaluation.system import Plan, PolicySystem

__all__ = ["Evaluation", "Plan", "PolicySystem", "evaluate"]
