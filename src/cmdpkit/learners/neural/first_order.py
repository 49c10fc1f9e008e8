"""Policy steps by plain gradients in minibatches: the clipped surrogate of PPO, and the penalty of FOCOPS.

    clip:     mean of min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)                              (Schulman et al. 2017)
    penalty:  mean of (ρ A / λ − KL(π_θ ‖ π_k)) over the states with KL(π_θ ‖ π_k) ≤ δ   (Zhang et al. 2020)

with ρ = π_θ/π_k, A the benefit in units of its deviation, and the temperature λ. Both are maximised by Adam. Epochs end
when the mean divergence KL(π_k ‖ π_θ) exceeds the radius, and the step is then shortened to lie within it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cmdpkit.learners.neural.local import LocalModel
from cmdpkit.learners.neural.trust_region import PolicyStep


@dataclass(frozen=True)
class FirstOrder:
    """Parameters of the ascent; see `NeuralSettings`."""

    surrogate: str  # "clip" or "penalty"
    radius: float
    clip: float
    temperature: float
    rate: float
    epochs: int
    minibatch: int

    def value(self, local: LocalModel, y: Tensor, rows: Tensor, benefit: Tensor) -> Tensor:
        """The surrogate of some samples, as a function of the outputs y there."""
        ratio = (local.pi.log_prob(y, local.actions[rows]) - local.log_prob[rows]).exp()
        if self.surrogate == "clip":
            kept = ratio.clamp(1.0 - self.clip, 1.0 + self.clip)
            return torch.minimum(ratio * benefit[rows], kept * benefit[rows]).mean()
        divergence = local.pi.divergence(y, local.y[rows])
        near = (divergence.detach() <= self.radius).to(divergence.dtype)
        return (near * (ratio * benefit[rows] / self.temperature - divergence)).mean()

    def gradient(self, local: LocalModel, theta: Tensor, rows: Tensor, benefit: Tensor) -> Tensor:
        """The gradient in θ: that in y by automatic differentiation, and then Jᵀ of the network."""
        hidden = local.network.activations(theta, local.x[rows])
        y = hidden[-1].detach().requires_grad_()
        (u,) = torch.autograd.grad(self.value(local, y, rows, benefit), y)
        return local.network.derivatives(theta, hidden).gradient(u)

    def step(
        self,
        local: LocalModel,
        benefit: Tensor,
        judge: Callable[[Tensor], tuple[float, float]],
        rng: np.random.Generator,
    ) -> PolicyStep:
        """Ascend from the policy of `local`; `trials` of the outcome counts the epochs."""
        if not benefit.any():
            return PolicyStep(local.theta, 0.0, 0.0, 0, "no gradient")
        theta, first, second = local.theta.clone(), torch.zeros_like(local.theta), torch.zeros_like(local.theta)
        count = epoch = 0
        gain = divergence = 0.0
        while epoch < self.epochs and divergence <= self.radius:
            epoch += 1
            order = torch.from_numpy(rng.permutation(len(local.x)))
            for rows in torch.split(order, self.minibatch):
                gradient = self.gradient(local, theta, rows, benefit)
                # Adam, from fresh moments in every policy step
                count += 1
                first.lerp_(gradient, 0.1)
                second.lerp_(gradient.square_(), 0.001)
                size = self.rate * math.sqrt(1.0 - 0.999**count) / (1.0 - 0.9**count)
                theta.addcdiv_(first, second.sqrt().add_(1e-8), value=size)
            gain, divergence = judge(theta)
        return self._within(local.theta, theta - local.theta, judge, gain, divergence, epoch)

    def _within(
        self,
        start: Tensor,
        step: Tensor,
        judge: Callable[[Tensor], tuple[float, float]],
        gain: float,
        divergence: float,
        epochs: int,
    ) -> PolicyStep:
        """The step, shortened to the radius where it is too long."""
        if not (math.isfinite(gain) and math.isfinite(divergence)):
            return PolicyStep(start, 0.0, 0.0, epochs, "not finite")
        size = 1.0
        while divergence > self.radius:
            size *= min(0.9, 0.99 * math.sqrt(self.radius / divergence))  # KL ≈ ½ size² sᵀFs
            gain, divergence = judge(start + size * step)
        return PolicyStep(start + size * step, divergence, gain, epochs, "accepted")
