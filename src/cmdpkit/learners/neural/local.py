"""The local model of a neural policy: what a natural-gradient step does to reward and costs, to first order.

With the surrogates L_i(θ′) = mean of (π_θ′/π_θ) Â_i over the samples, their gradients g_i at θ and the Fisher matrix F,

    L_i(θ + s) ≈ g_iᵀs,    mean KL ≈ ½ sᵀFs,    s = −step · F⁻¹ Σ w_j g_j    gives    L_i ≈ −step · Σ_j g_iᵀF⁻¹g_j w_j

so that the products g_iᵀF⁻¹g_j predict every step, whatever its weights. The gradients are estimated, and the step
follows their errors: on the samples that it was made from, its effect looks up to ten times as large as it is
(docs/decisions.md). The response is therefore measured on other samples: the gradients of one half of the environments
with the directions of the other. Advantages are standardised, so that everything here is dimensionless.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cmdpkit.checks import Array, CostArray
from cmdpkit.learners.neural.distributions import Distribution
from cmdpkit.learners.neural.networks import Network
from cmdpkit.learners.neural.trust_region import SMALL, conjugate_gradients
from cmdpkit.rules.base import Prediction, View

CONSTANT = 1e-8
"""An advantage whose standard deviation is no larger does not vary, in units of its quantity."""


class LocalModel:
    """A policy around θ, as samples of it show it.

    Args:
        theta: θ.
        network, distribution: of the policy.
        x: (N, width) inputs.
        actions: the N actions taken.
        advantages: (N, m + 1) of −reward and the costs.
        half: (N,) which samples belong to the first of two independent halves.
        damping, cg_steps: of the conjugate gradients.
        few: the samples on whose states the Fisher matrix is estimated; all by default. A few hundred give nearly the
            same directions (docs/decisions.md).
        small: of the conjugate gradients.
        units: (m + 1,) sizes of small quantities, 1 for others.
    """

    def __init__(
        self,
        theta: Tensor,
        network: Network,
        distribution: Distribution,
        x: Tensor,
        actions: Tensor,
        advantages: Array,
        half: NDArray[np.bool_],
        damping: float,
        cg_steps: int,
        few: NDArray[np.intp] | None = None,
        small: float = SMALL,
        units: Array | float = 1.0,
    ) -> None:
        self.theta, self.network, self.pi, self.x, self.actions = theta, network, distribution, x, actions
        self.advantages, self.half, self.damping, self.cg_steps = advantages, half, damping, cg_steps
        self.small, self.constant = small, CONSTANT * np.asarray(units)
        self.hidden = network.activations(theta, x)
        self.y = self.hidden[-1]
        self.log_prob = distribution.log_prob(self.y, actions)
        self._score = distribution.score(self.y, actions)
        states = self.hidden if few is None else [h.index_select(0, torch.from_numpy(few)) for h in self.hidden]
        self._few, self._metric = network.derivatives(theta, states), distribution.metric(states[-1])
        self._solved: tuple[Tensor, Tensor] | None = None  # gradients, and what F⁻¹ makes of them

    def gradient(self, benefit: Tensor) -> Tensor:
        """(1/N) Jᵀ (benefit · ∂ log π/∂y)."""
        slopes = self.network.derivatives(self.theta, self.hidden)
        return slopes.gradient(self._score * benefit[:, None]).div_(len(self.x))

    def fisher(self, v: Tensor) -> Tensor:
        """F v = (1/N) Jᵀ M J v."""
        return self._few.gradient(self._metric(self._few.forward(v))).div_(len(self._few.hidden[0]))

    def judge(self, benefit: Tensor, worst: Array | None = None) -> Callable[[Tensor], tuple[float, float]]:
        """θ′ ↦ (mean of (π_θ′/π_θ) · benefit, mean KL(π_θ ‖ π_θ′)).

        Where mean (π_θ′/π_θ − 1) · Â_i exceeds `worst` (m + 1,), the gain is minus the excess, in deviations.
        """

        def judge(candidate: Tensor) -> tuple[float, float]:
            moved = self.network(candidate, self.x)
            ratio = (self.pi.log_prob(moved, self.actions) - self.log_prob).exp()
            gain, divergence = float((ratio * benefit).mean()), float(self.pi.divergence(self.y, moved).mean())
            if worst is None:
                return gain, divergence
            growth = (ratio.double().numpy() - 1.0) @ self.advantages / len(self.advantages)
            excess = float(((growth - worst) / (self.deviations + self.constant)).max())
            return (gain if excess <= 1e-6 else -excess), divergence

        return judge

    @cached_property
    def deviations(self) -> CostArray:
        """Standard deviation of each advantage; 0 where it does not vary."""
        sizes = np.asarray(self.advantages.std(axis=0))
        return np.where(sizes > self.constant, sizes, 0.0)

    @cached_property
    def products(self) -> tuple[Array, Array]:
        """(m + 1, m + 1) g_iᵀ(F + damping · I)⁻¹g_j: on the samples themselves, and between the two halves."""
        sizes = np.where(self.deviations > 0.0, self.deviations, 1.0)
        scaled = (self.advantages - self.advantages.mean(axis=0)) / sizes
        g, x = zip(*(self._half(scaled, chosen) for chosen in (self.half, ~self.half)), strict=True)
        self._solved = torch.cat(g), torch.cat(x)
        own = 0.25 * (g[0] + g[1]) @ (x[0] + x[1]).T
        across = 0.5 * (g[0] @ x[1].T + g[1] @ x[0].T)
        return _symmetric(own), _symmetric(across)

    def _half(self, scaled: Array, chosen: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
        """The gradients of a part of the samples, and their directions."""
        rows = torch.from_numpy(np.flatnonzero(chosen))
        *hidden, score = (h.index_select(0, rows) for h in (*self.hidden, self._score))
        slopes = self.network.derivatives(self.theta, hidden)
        benefits = torch.from_numpy(scaled[chosen].astype(np.float32))
        gradients = [slopes.gradient(score * b[:, None]).div_(len(rows)) for b in benefits.T]
        directions = [conjugate_gradients(self._damped, g, self.cg_steps, small=self.small) for g in gradients]
        return torch.stack(gradients), torch.stack(directions)

    def guess(self, gradient: Tensor) -> Tensor | None:
        """F⁻¹ g, as far as g is a combination of gradients for which it is known; None if there are none."""
        if self._solved is None:
            return None
        known, directions = self._solved
        weights = np.linalg.lstsq(known.double().numpy().T, gradient.double().numpy(), rcond=None)[0]
        return torch.from_numpy(weights.astype(np.float32)) @ directions

    def _damped(self, v: Tensor) -> Tensor:
        return self.fisher(v).add_(v, alpha=self.damping)


@dataclass(frozen=True)
class NeuralView(View):
    """The view of a neural policy. The local model is computed on first use.

    Args:
        model: makes the local model.
        radius: of the trust region.
        length: by how much a measure grows when every step costs 1 more: steps per episode, for example.
        shown: (m + 1,) which of −reward and the costs have a limit; None shows all of them.
    """

    model: Callable[[], LocalModel] | None = None
    radius: float = 0.0
    length: float = 1.0
    shown: NDArray[np.bool_] | None = None

    @property
    def deviations(self) -> CostArray:
        assert self.model is not None
        return self.model().deviations[self._shown]

    @property
    def _shown(self) -> NDArray[np.bool_]:
        return np.ones(self.values.size + 1, dtype=np.bool_) if self.shown is None else self.shown

    @property
    def prediction(self) -> Prediction:
        assert self.model is not None
        local = self.model()
        metric, response = (table[np.ix_(self._shown, self._shown)] for table in local.products)
        return Prediction(self.deviations, metric, response, self.radius, self.length)


def _symmetric(products: Tensor) -> Array:
    """Conjugate gradients that stop early leave products slightly asymmetric."""
    return np.asarray(0.5 * (products + products.T).double().numpy())
