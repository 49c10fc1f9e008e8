"""Critics: the values V_0..V_m of a policy as functions of the state, fitted to returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cmdpkit.checks import Array
from cmdpkit.learners.neural.networks import Network
from cmdpkit.learners.neural.policy import Floats


class Moments:
    """Running mean and variance of each column, updated a batch at a time (Chan et al. 1979).

    Example:
        >>> moments = Moments(1)
        >>> moments.update(np.array([[1.0], [3.0]]))
        >>> moments.mean, moments.deviation
        (array([2.]), array([1.]))
    """

    def __init__(self, width: int) -> None:
        self.count, self.mean, self.squares = 0.0, np.zeros(width), np.zeros(width)

    def update(self, rows: Any, forget: float = 0.0) -> None:
        """Add new rows; `forget` is the fraction by which old ones are discounted first."""
        n, mean, spread = len(rows), rows.mean(axis=0, dtype=np.float64), rows.var(axis=0, dtype=np.float64)
        count = (1.0 - forget) * self.count
        away, total = mean - self.mean, count + n
        self.squares = (1.0 - forget) * self.squares + n * spread + away**2 * count * n / total
        self.mean = self.mean + away * n / total
        self.count = total

    @property
    def deviation(self) -> Array:
        """Standard deviation, at least 1e-6 to allow division for a constant column."""
        return np.maximum(np.sqrt(self.squares / max(self.count, 1.0)), 1e-6)


class Critics:
    """One network with an output per quantity, trained by Adam on squared errors in units of their deviation.

    Separate networks explain no more of the returns and take three times as long (docs/decisions.md).

    Args:
        width: size of an observation.
        quantities: m + 1.
        hidden: sizes of the hidden layers.
        rng: generator of the initial weights.
        rate, epochs, minibatch: parameters of the regression.
        activation: of the hidden layers.
    """

    def __init__(
        self,
        width: int,
        quantities: int,
        hidden: Sequence[int],
        rng: np.random.Generator,
        rate: float = 1e-3,
        epochs: int = 5,
        minibatch: int = 250,
        activation: str = "relu",
    ) -> None:
        self.network = Network([width, *hidden, quantities], activation=activation)
        self.theta = self.network.initial(rng)
        self.first, self.second = torch.zeros_like(self.theta), torch.zeros_like(self.theta)  # Adam's moments
        self.steps = 0
        self.returns = Moments(quantities)
        self.rate, self.epochs, self.minibatch = rate, epochs, minibatch

    def values(self, x: Floats) -> Array:
        """V_0..V_m for every row."""
        y = self.network(self.theta, torch.from_numpy(x)).numpy()
        return np.asarray(self.returns.mean + self.returns.deviation * y)

    def fit(self, x: Floats, returns: Array, rng: np.random.Generator) -> bool:
        """Regress on returns. Returns False, and changes nothing, if a number is not finite."""
        if not np.isfinite(returns).all():
            return False
        kept = (self.theta.clone(), self.first.clone(), self.second.clone(), self.steps)
        moments = dict(vars(self.returns))
        self.returns.update(returns, forget=0.5)
        inputs = torch.from_numpy(x)
        targets = torch.from_numpy(((returns - self.returns.mean) / self.returns.deviation).astype(np.float32))
        for _ in range(self.epochs):
            order = torch.from_numpy(rng.permutation(len(x)))
            for rows in torch.split(order, self.minibatch):
                self._step(inputs[rows], targets[rows])
        if torch.isfinite(self.theta).all():
            return True
        self.theta, self.first, self.second, self.steps = kept
        vars(self.returns).update(moments)
        return False

    def _step(self, x: Tensor, targets: Tensor) -> None:
        hidden = self.network.activations(self.theta, x)
        # ∇ mean (y − target)² = Jᵀ 2 (y − target) / size
        gradient = self.network.gradient(self.theta, hidden, (hidden[-1] - targets).mul_(2.0 / targets.numel()))
        # Adam: θ ← θ − rate · m̂ / (√v̂ + ε)
        self.steps += 1
        self.first.lerp_(gradient, 0.1)
        self.second.lerp_(gradient.square_(), 0.001)
        rate = self.rate * math.sqrt(1.0 - 0.999**self.steps) / (1.0 - 0.9**self.steps)
        self.theta.addcdiv_(self.first, self.second.sqrt().add_(1e-8), value=-rate)
