"""The neural learner. Only its modules import PyTorch; policies act without it."""

from typing import Any

__all__ = ["NeuralLearner"]


def __getattr__(name: str) -> Any:
    if name != "NeuralLearner":
        raise AttributeError(f"module 'cmdpkit.learners.neural' has no attribute {name!r}")
    from cmdpkit.learners.neural.learner import NeuralLearner

    return NeuralLearner
