"""Distributions over actions given the outputs of a policy network: softmax or Gaussian. Rows are states."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor


class Distribution(Protocol):
    """What the trust region needs of π(·|s) with parameters y, in closed form."""

    def log_prob(self, y: Tensor, actions: Tensor) -> Tensor: ...
    def score(self, y: Tensor, actions: Tensor) -> Tensor: ...
    def divergence(self, y: Tensor, other: Tensor) -> Tensor: ...
    def metric(self, y: Tensor) -> Callable[[Tensor], Tensor]: ...


class Softmax:
    """π(a|s) ∝ exp y_a."""

    def log_prob(self, y: Tensor, actions: Tensor) -> Tensor:
        return y.log_softmax(dim=1).gather(1, actions[:, None])[:, 0]

    def score(self, y: Tensor, actions: Tensor) -> Tensor:
        # ∂ log π(a) / ∂y = e_a − π
        score = -y.softmax(dim=1)
        score[torch.arange(len(y)), actions] += 1.0
        return score

    def divergence(self, y: Tensor, other: Tensor) -> Tensor:
        # KL(π ‖ π′) = Σ_a π (log π − log π′)
        log_pi = y.log_softmax(dim=1)
        return (log_pi.exp() * (log_pi - other.log_softmax(dim=1))).sum(dim=1)

    def metric(self, y: Tensor) -> Callable[[Tensor], Tensor]:
        # v ↦ (diag π − π πᵀ) v: the Fisher matrix of π in y
        pi = y.softmax(dim=1)
        return lambda v: pi * (v - (pi * v).sum(dim=1, keepdim=True))


class Softmaxes:
    """Several independent choices: each has its own part of y."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes, self.one = list(sizes), Softmax()

    def log_prob(self, y: Tensor, actions: Tensor) -> Tensor:
        parts = zip(self._parts(y), actions.unbind(dim=1), strict=True)
        return torch.stack([self.one.log_prob(part, chosen) for part, chosen in parts]).sum(dim=0)

    def score(self, y: Tensor, actions: Tensor) -> Tensor:
        parts = zip(self._parts(y), actions.unbind(dim=1), strict=True)
        return torch.cat([self.one.score(part, chosen) for part, chosen in parts], dim=1)

    def divergence(self, y: Tensor, other: Tensor) -> Tensor:
        parts = zip(self._parts(y), self._parts(other), strict=True)
        return torch.stack([self.one.divergence(part, others) for part, others in parts]).sum(dim=0)

    def metric(self, y: Tensor) -> Callable[[Tensor], Tensor]:
        metrics = [self.one.metric(part) for part in self._parts(y)]
        return lambda v: torch.cat([m(part) for m, part in zip(metrics, self._parts(v), strict=True)], dim=1)

    def _parts(self, y: Tensor) -> tuple[Tensor, ...]:
        return torch.split(y, self.sizes, dim=1)


class Gaussian:
    """Independent normals: the first half of y are means, the second log σ."""

    def log_prob(self, y: Tensor, actions: Tensor) -> Tensor:
        mean, log_std = y.chunk(2, dim=1)
        z = (actions - mean) * (-log_std).exp()
        return (-0.5 * z * z - log_std - 0.5 * math.log(2.0 * math.pi)).sum(dim=1)

    def score(self, y: Tensor, actions: Tensor) -> Tensor:
        # ∂ log π / ∂μ = z / σ,   ∂ log π / ∂ log σ = z² − 1,   z = (a − μ) / σ
        mean, log_std = y.chunk(2, dim=1)
        z = (actions - mean) * (-log_std).exp()
        return torch.cat([z * (-log_std).exp(), z * z - 1.0], dim=1)

    def divergence(self, y: Tensor, other: Tensor) -> Tensor:
        # KL(π ‖ π′) = Σ log σ′ − log σ + (σ² + (μ − μ′)²) / 2σ′² − ½
        (mean, log_std), (other_mean, other_log_std) = y.chunk(2, dim=1), other.chunk(2, dim=1)
        spread = (2.0 * log_std).exp() + (mean - other_mean) ** 2
        return (other_log_std - log_std + 0.5 * spread * (-2.0 * other_log_std).exp() - 0.5).sum(dim=1)

    def metric(self, y: Tensor) -> Callable[[Tensor], Tensor]:
        # 1/σ² for the means, 2 for log σ
        mean, log_std = y.chunk(2, dim=1)
        diagonal = torch.cat([(-2.0 * log_std).exp(), torch.full_like(mean, 2.0)], dim=1)
        return lambda v: diagonal * v
