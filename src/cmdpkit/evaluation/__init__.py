"""Policy evaluation: how the linear systems of a policy are solved, and what they tell."""

from cmdpkit.evaluation.evaluate import Evaluation, evaluate
from cmdpkit.evaluation.system import Plan, PolicySystem

__all__ = ["Evaluation", "Plan", "PolicySystem", "evaluate"]
