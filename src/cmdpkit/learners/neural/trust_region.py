"""The natural-gradient step within a trust region (Schulman et al. 2015).

    maximise gᵀs subject to ½ sᵀFs ≤ δ:     s = √(2δ / xᵀFx) x,    x = F⁻¹g

Only products with F are needed; x comes from conjugate gradients. A backtracking line search then checks the step on
the samples: the surrogate must increase, and the divergence must stay within δ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

ACCEPT = 0.1
"""Fraction of the increase predicted by the gradient that a step must achieve."""


class PolicyStep(NamedTuple):
    """The outcome of a step."""

    theta: Tensor  # the new parameters; the old ones if the step was rejected
    divergence: float  # mean KL(old ‖ new)
    gain: float  # gain of the surrogate
    trials: int  # trials of the line search
    verdict: str  # "accepted", "no gradient", "line search failed" or "not finite"

    @property
    def accepted(self) -> bool:
        return self.verdict == "accepted"


SMALL = 0.01
"""Conjugate gradients end where the residual is this part of the gradient, which itself is less accurate."""


@torch.inference_mode()  # calls take a twentieth less
def conjugate_gradients(
    product: Callable[[Tensor], Tensor], b: Tensor, steps: int, start: Tensor | None = None, small: float = 1e-5
) -> Tensor:
    """x with A x ≈ b, for a symmetric positive definite A given by its products with vectors.

    Args:
        product: v ↦ A v.
        b: the right-hand side.
        steps: maximum number of steps.
        start: x to begin with; 0 by default.
        small: stop where |b − A x| ≤ small · |b|.

    Example:
        >>> conjugate_gradients(lambda v: torch.tensor([2.0, 4.0]) * v, torch.tensor([2.0, 8.0]), steps=2)
        tensor([1., 2.])
    """
    x = torch.zeros_like(b) if start is None else start.clone()
    residual = b.clone() if start is None else b - product(x)
    direction = residual.clone()
    squared, enough = float(residual @ residual), small**2 * float(b @ b)
    for _ in range(steps):
        if squared <= enough:
            break
        image = product(direction)
        curvature = float(direction @ image)
        length = squared / curvature if curvature else math.inf
        x.add_(direction, alpha=length)
        residual.sub_(image, alpha=length)
        before, squared = squared, float(residual @ residual)
        direction.mul_(squared / before).add_(residual)
    return x


def trust_region_step(
    theta: Tensor,
    gradient: Tensor,
    fisher: Callable[[Tensor], Tensor],
    judge: Callable[[Tensor], tuple[float, float]],
    radius: float,
    damping: float,
    cg_steps: int = 10,
    trials: int = 10,
    length: float | None = None,
    start: Tensor | None = None,
) -> PolicyStep:
    """Step from θ along the natural gradient, within the trust region and checked on the samples.

    Args:
        theta: the initial parameters.
        gradient: g, the gradient of the surrogate to be maximised.
        fisher: v ↦ F v.
        judge: θ′ ↦ (gain of the surrogate, mean divergence KL(old ‖ new)), on the samples.
        radius: δ, the largest divergence.
        damping: F + damping · I is used in place of F, which may be singular.
        cg_steps: number of conjugate-gradient steps.
        trials: maximum number of line-search trials.
        length: the step is length · F⁻¹ g, if that lies within the trust region; None goes to the boundary.
        start: what is known of F⁻¹ g.
    """
    if length == 0.0:
        return PolicyStep(theta, 0.0, 0.0, 0, "accepted")
    if not torch.isfinite(gradient).all():
        return PolicyStep(theta, 0.0, 0.0, 0, "not finite")
    if not gradient.any():
        return PolicyStep(theta, 0.0, 0.0, 0, "no gradient")
    x = conjugate_gradients(lambda v: fisher(v).add_(v, alpha=damping), gradient, cg_steps, start, SMALL)
    # s = √(2δ / xᵀFx) x
    curvature = float(x @ (fisher(x) + damping * x))
    if not math.isfinite(curvature) or curvature <= 0.0:
        return PolicyStep(theta, 0.0, 0.0, 0, "not finite")
    farthest = math.sqrt(2.0 * radius / curvature)
    step = (farthest if length is None else min(length, farthest)) * x
    promised = float(gradient @ step)
    size, finite = 1.0, False
    for trial in range(1, trials + 1):
        candidate = theta + size * step
        gain, divergence = judge(candidate)
        if math.isfinite(gain) and math.isfinite(divergence):
            finite = True
            if divergence <= radius and gain >= ACCEPT * size * promised > 0.0:
                return PolicyStep(candidate, divergence, gain, trial, "accepted")
            if radius < divergence <= 4.0 * radius:  # slightly too far: back to the boundary, by KL ≈ ½ size² sᵀFs
                size *= 0.95 * math.sqrt(radius / divergence)
                continue
        size *= 0.5
    return PolicyStep(theta, 0.0, 0.0, trials, "line search failed" if finite else "not finite")
