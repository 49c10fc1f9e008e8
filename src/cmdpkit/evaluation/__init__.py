"""Policy evaluation: how the linear systems of a policy are solved, and what they tell."""

from cmdpkit.evaluation.evaluate import Evaluation, evaluate
from cmdpkit.evaluation.system import PolicySystem

__all__ = ["Evaluation", "PolicySystem", "evaluate"]
