"""Critics: the values V_0..V_m of a policy as functions of the state, fitted to returns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cmdpkit.checks import Array
from cmdpkit.learners.neural.networks import Network
from cmdpkit.learners.neural.policy import Floats

Layers = list[tuple[Tensor, Tensor]]


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
        return self.deviation_in(1.0)

    def deviation_in(self, units: Array | float) -> Array:
        """Standard deviation, at least 1e-6 units."""
        return np.maximum(np.sqrt(self.squares / max(self.count, 1.0)), 1e-6 * units)


SMALL = 1e-4
"""Rewards and costs below this are measured in their own size by what tells small numbers from none."""


def own_unit(sizes: Array) -> Array:
    """The size of small quantities; 1 for others, and for those that are zero."""
    return np.where((sizes > 0.0) & (sizes < SMALL), sizes, 1.0)


class Critics:
    """One network with an output per quantity, trained by Adam on squared errors in units of their deviation.

    Separate networks explain no more of the returns and take three times as long (docs/decisions.md). Minibatches are
    small: compiled code makes a pass over all of them, or, for wide networks, the steps of Adam.

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
        self.theta: Floats = self.network.initial(rng).numpy()
        self.first, self.second = np.zeros_like(self.theta), np.zeros_like(self.theta)  # Adam's moments
        self.steps = 0
        self.returns = Moments(quantities)
        self.rate, self.epochs, self.minibatch = rate, epochs, minibatch

    def values(self, x: Floats, units: Array | float = 1.0) -> Array:
        """V_0..V_m for every row; `units` are the sizes of small quantities, 1 for others."""
        y = self.network(torch.from_numpy(self.theta), torch.from_numpy(x)).numpy()
        return np.asarray(self.returns.mean + self.returns.deviation_in(units) * y)

    def fit(self, x: Floats, returns: Array, rng: np.random.Generator, units: Array | float = 1.0) -> bool:
        """Regress on returns. Returns False, and changes nothing, if a number is not finite."""
        if not np.isfinite(returns).all():
            return False
        kept = (self.theta.copy(), self.first.copy(), self.second.copy(), self.steps)
        moments = dict(vars(self.returns))
        self.returns.update(returns, forget=0.5)
        targets = ((returns - self.returns.mean) / self.returns.deviation_in(units)).astype(np.float32)
        for _ in range(self.epochs):
            order = rng.permutation(len(x))
            self._epoch(x.take(order, axis=0), targets.take(order, axis=0))
        if np.isfinite(self.theta).all() and np.isfinite(self.second).all():
            return True
        self.theta, self.first, self.second, self.steps = kept
        vars(self.returns).update(moments)
        return False

    def _epoch(self, x: Floats, targets: Floats) -> None:
        from cmdpkit.learners.neural import regression  # compiled

        minibatch, sizes = min(self.minibatch, len(x)), self.network.sizes
        count = -(-len(x) // minibatch)
        paces = np.array([regression.pace(self.rate, self.steps + k) for k in range(1, count + 1)])
        self.steps += count
        if max(a * b for a, b in pairwise(sizes)) <= regression.WIDEST:
            shape, moments = (np.array(sizes), self.network.activate is torch.tanh_), (self.first, self.second)
            regression.epoch(x, targets, *shape, minibatch, self.theta, *moments, paces)
        else:
            self._epoch_in_parts(torch.from_numpy(x), torch.from_numpy(targets), minibatch, paces, regression.descend)

    @torch.inference_mode()  # calls take a tenth less
    def _epoch_in_parts(self, x: Tensor, targets: Tensor, minibatch: int, paces: Floats, descend: Any) -> None:
        """The same for wide networks."""
        theta, gradient = torch.from_numpy(self.theta), torch.empty(self.theta.size)
        layers, parts, ones = self.network.layers(theta), self.network.layers(gradient), torch.ones(minibatch)
        batches = zip(torch.split(x, minibatch), torch.split(targets, minibatch), paces, strict=True)
        for rows, goals, length in batches:
            self._differentiate(layers, parts, rows, goals, ones[: len(rows)])
            descend(self.theta, gradient.numpy(), self.first, self.second, length)

    def _differentiate(self, layers: Layers, parts: Layers, x: Tensor, targets: Tensor, ones: Tensor) -> None:
        """Write ∇ mean (y − target)² = Jᵀ 2 (y − target) / size into `parts`, as `Network.gradient` does."""
        activate, passed = self.network.activate, self.network.passed
        hidden = [x]
        for weight, bias in layers[:-1]:
            hidden.append(activate(torch.mm(hidden[-1], weight.T).add_(bias)))
        y = torch.mm(hidden[-1], layers[-1][0].T).add_(layers[-1][1])
        u = y.sub_(targets).mul_(2.0 / targets.numel())
        for (weight, _), (g_weight, g_bias), before in zip(layers[::-1], parts[::-1], hidden[::-1], strict=True):
            torch.mm(u.T, before, out=g_weight)
            torch.mv(u.T, ones, out=g_bias)
            if before is not x:
                u = passed(torch.mm(u, weight), before)
