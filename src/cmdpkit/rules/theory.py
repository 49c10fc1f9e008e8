"""The constants and bounds of the paper's theorems, one function each, with the label of its equation.

They hold in the paper's own form: every cost, with its limit spread over the steps, lies in [−1, 1] (`check_bounded`).
Gaps and violations are those of the average over the macro steps; logarithms are natural.

Two constants differ from the print, because the paper's proof needs it (docs/theory.md has the steps): α has no factor
γ², and t_k is larger by one. `printed=True` gives both as printed; Theorem 1 is then false for small γ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.model import CMDP, refuse_averages


@dataclass(frozen=True)
class Theorem1:
    """Parameters and bounds of Theorem 1 for a model with m constraints and A actions, run for K macro steps."""

    gamma: float
    constraints: int  # m
    actions: int
    macro_steps: int  # K
    eta_dual: float = 1.0  # η′ in (0, 1]
    printed: bool = False  # α and t_k as the paper prints them
    margin: float = 0.0  # δ by which the limits are tightened (Theorem 2)

    @property
    def alpha(self) -> float:
        # α = 2 m η′ / (1 − γ)³; the paper prints 2 γ² m η′ / (1 − γ)³
        factor = self.gamma**2 if self.printed else 1.0
        return 2.0 * factor * self.constraints * self.eta_dual / (1.0 - self.gamma) ** 3

    @property
    def eta(self) -> float:
        # η = (1 − γ) / α
        return (1.0 - self.gamma) / self.alpha

    @property
    def step(self) -> float:
        """The effective step η / (1 − γ) = 1/α."""
        return 1.0 / self.alpha

    def inner_constant(self, lam: Array) -> float:
        # C_k = 2γ ((1 + Σ λ_k,i) / (1 − γ) + m η′ / (1 − γ)²), for |V_i| ≤ 1/(1 − γ) + δ
        rest = 1.0 - self.gamma
        values = 1.0 / rest + self.margin
        return float(2.0 * self.gamma * (1.0 + lam.sum() + self.constraints * self.eta_dual * values) / rest)

    def inner_steps(self, lam: Array) -> int:
        # t_k = 1 + ⌈log⁺(3 K C_k) / (1 − γ)⌉, so that 3 C_k γ^(t_k − 1) ≤ 1/K
        # printed: ⌈max(log(3 K C_k) / (η α), 1)⌉ with η α = 1 − γ
        needed = _log_plus(3.0 * self.macro_steps * self.inner_constant(lam)) / (1.0 - self.gamma)
        return math.ceil(max(needed, 1.0)) if self.printed else 1 + math.ceil(needed)

    @property
    def _start(self) -> float:
        # α log|A| / (1 − γ) + 1 + 2 / (3 (1 − γ)): what the first policy may cost in all
        rest = 1.0 - self.gamma
        return self.alpha * math.log(self.actions) / rest + 1.0 + 2.0 / (3.0 * rest)

    def gap_bound(self, macro_steps: int | Array | None = None) -> float | Array:
        # (1/K) (α log|A| / (1 − γ) + 1 + 2 / (3 (1 − γ)))                                    (eq. opt-gap)
        return self._start / (self.macro_steps if macro_steps is None else macro_steps)

    def violation_bound(self, optimal_multipliers: Array, macro_steps: int | Array | None = None) -> float | Array:
        # (1/K) (‖λ*‖/η′ + sqrt(‖λ*‖²/η′² + 2α log|A| / ((1−γ)η′) + (2/η′)(1 + 2/(3(1−γ))) + 2m/(1−γ)²))   (eq. con-vio)
        return self._violations(float(np.linalg.norm(optimal_multipliers))) / (
            self.macro_steps if macro_steps is None else macro_steps
        )

    def _violations(self, norm: float) -> float:
        ratio = norm / self.eta_dual
        inside = ratio**2 + 2.0 * self._start / self.eta_dual + 2.0 * self.constraints / (1.0 - self.gamma) ** 2
        return ratio + math.sqrt(inside)

    def multiplier_bound(self, optimal_multipliers: Array) -> float:
        # ‖λ_k‖ ≤ ‖λ*‖ + sqrt(‖λ*‖² + 2η′ (α log|A|/(1−γ) + 1 + 2/(3(1−γ)) + mη′/(1−γ)²))      (eq. bound_lambda)
        norm = float(np.linalg.norm(optimal_multipliers))
        more = self._start + self.constraints * self.eta_dual / (1.0 - self.gamma) ** 2
        return norm + math.sqrt(norm**2 + 2.0 * self.eta_dual * more)

    def c_star(self, optimal_multipliers: Array) -> float:
        # C* = 6eγ ((1 + √m ‖λ‖_max) / (1 − γ) + m η′ / (1 − γ)²), a bound on 3e C_k                   (eq. C_*)
        largest = math.sqrt(self.constraints) * self.multiplier_bound(optimal_multipliers)
        return 3.0 * math.e * self.inner_constant(np.array([largest]))

    def total_steps_bound(self, optimal_multipliers: Array) -> float:
        # T = Σ t_k ≤ K (2 + log⁺(K C*/e) / (1 − γ)), as t_k ≤ 2 + log⁺(3 K C_k) / (1 − γ)     (Corollary 1)
        return self.macro_steps * self._steps_each(self.macro_steps, optimal_multipliers)

    def rate(self, total_steps: float, optimal_multipliers: Array) -> float:
        # 1/K ≤ (2 + log⁺(T C*/e) / (1 − γ)) / T, as K ≤ T: how Corollary 1 turns macro steps into gradient steps
        return self._steps_each(total_steps, optimal_multipliers) / total_steps

    def _steps_each(self, count: float, optimal_multipliers: Array) -> float:
        return 2.0 + _log_plus(count * self.c_star(optimal_multipliers) / math.e) / (1.0 - self.gamma)

    # -- Theorem 2: zero violation ------------------------------------------------------------------------------

    def pessimism(self, xi: float) -> float:
        """b of Theorem 2: the limits are tightened by δ = b/K, for any K ≥ 2b/ξ."""
        # b = 4/(ξ(1−γ)η′) + sqrt(16/(ξ²(1−γ)²η′²) + 2α log|A|/((1−γ)η′) + (2/η′)(1 + 2/(3(1−γ))) + 2m/(1−γ)²)
        # (eq. c_delta): the violations of Theorem 1, for the ‖λ*‖ ≤ 4/(ξ(1−γ)) of the tightened problem
        return self._violations(4.0 / (xi * (1.0 - self.gamma)))

    def zero_gap_bound(self, xi: float, macro_steps: int | None = None) -> float:
        # the bound of Theorem 1 plus 2b / (K ξ (1 − γ)): the price of zero violation
        price = 2.0 * self.pessimism(xi) / (xi * (1.0 - self.gamma))
        return (self._start + price) / (self.macro_steps if macro_steps is None else macro_steps)


@dataclass(frozen=True)
class Theorem3:
    """Theorem 3 with explicit constants: gap and violation of the average at most ε with probability 1 − δ.

    The paper's eq. params gives orders only. These constants follow its proof with |V̂_i − V_i| ≤ e_V and
    |Q̂ − Q̃| ≤ e_Q in every estimate, and e_V = x/K, e_Q = y/(K q) with q below (docs/theory.md has the steps).
    """

    gamma: float
    constraints: int  # m
    states: int
    actions: int
    epsilon: float
    delta: float
    xi: float  # the Slater margin, for ‖λ*‖₁ ≤ 2 / (ξ (1 − γ))
    eta_dual: float = 1.0
    printed: bool = False  # α and t_k as the paper prints them

    @property
    def _parameters(self) -> Theorem1:
        """α, η and the cost of the first policy do not depend on K."""
        return Theorem1(self.gamma, self.constraints, self.actions, 1, self.eta_dual, self.printed)

    @property
    def value_share(self) -> float:
        # x = K e_V
        return 1.0

    @property
    def action_share(self) -> float:
        # y = K q e_Q = 2 start: the transitions needed grow like (start + y)³/y², which is least there
        return 2.0 * self._start

    @property
    def _start(self) -> float:
        # α log|A|/(1 − γ) + 1 + 2/(3(1 − γ)) + η′ m/(1 − γ)²                                (eq. sample_last)
        return self._parameters._start + self.eta_dual * self.constraints / (1.0 - self.gamma) ** 2

    @property
    def error_factor(self) -> float:
        # q = 6/(1 − γ)² + 4/(1 − γ)³: an error e_Q costs q e_Q per macro step     (Lemmas cor_cen_estimate, push-app-A)
        return 6.0 / (1.0 - self.gamma) ** 2 + 4.0 / (1.0 - self.gamma) ** 3

    @property
    def _value_factor(self) -> float:
        # 3 η′ m/(1 − γ) + η′ m: what an error e_V ≤ 1 of V̂ costs in a macro step, besides ‖λ_k‖₁
        return 3.0 * self.eta_dual * self.constraints / (1.0 - self.gamma) + self.eta_dual * self.constraints

    @property
    def multiplier_bound(self) -> float:
        # D ≥ ‖λ_k‖ solves D² − 2 D (L + η′ x √m) ≤ 2η′ B, with L = 2/(ξ(1 − γ)) ≥ ‖λ*‖ and         (Lemma dual-bound)
        # B = start + η′ m/(2(1 − γ)²) + y + x (3η′m/(1 − γ) + η′m + L)
        largest = multiplier_norm_bound(self.xi, self.gamma)
        inside = self._start + 0.5 * self.eta_dual * self.constraints / (1.0 - self.gamma) ** 2
        inside += self.action_share + self.value_share * (self._value_factor + largest)
        centre = largest + self.eta_dual * self.value_share * math.sqrt(self.constraints)
        return centre + math.sqrt(centre**2 + 2.0 * self.eta_dual * inside)

    @property
    def macro_steps(self) -> int:
        # K ε ≥ start + y + x (√m D + 3η′m/(1 − γ) + η′m)   (gap)   and   K ε ≥ D/η′ + x   (violation)
        dual = self.multiplier_bound
        gap = self._start + self.action_share
        gap += self.value_share * (math.sqrt(self.constraints) * dual + self._value_factor)
        return math.ceil(max(gap, dual / self.eta_dual + self.value_share) / self.epsilon)

    @property
    def schedule(self) -> Theorem1:
        """α, η and t_k for these K macro steps."""
        return replace(self._parameters, macro_steps=self.macro_steps)

    def value_rollouts(self, width: float) -> tuple[int, int]:
        """M_V and N_V, for costs of one step within an interval of this width."""
        # δ/2 for all (K + 1) m estimates of V_i; half of e_V for the truncation, half for Hoeffding
        error = self.value_share / self.macro_steps
        share = self.delta / (2.0 * (self.macro_steps + 1) * self.constraints)
        return self._hoeffding(width / (1.0 - self.gamma), error, share), self._horizon(1.0, error)

    def action_rollouts(self, width: float, size: float, divergence: float, inner_steps: int) -> tuple[int, int]:
        """M_Q and N_Q, for a mixed cost within `width` and of at most `size`, and α KL of at most `divergence`."""
        # δ/2 for all K t_k |S||A| estimates of macro step k:  δ'_k = δ / (2 K t_k |S||A|)
        error = self.action_share / (self.macro_steps * self.error_factor)
        share = self.delta / (2.0 * self.macro_steps * inner_steps * self.states * self.actions)
        spread = (width + self.gamma * divergence) / (1.0 - self.gamma)
        return self._hoeffding(spread, error, share), self._horizon(size + divergence, error)

    def _hoeffding(self, spread: float, error: float, share: float) -> int:
        # 2 exp(−2 M (e/2)² / R²) ≤ δ'   ⇔   M ≥ 2 R² log(2/δ') / e²
        return max(1, math.ceil(2.0 * spread**2 * math.log(2.0 / share) / error**2))

    def _horizon(self, size: float, error: float) -> int:
        # γ^N size/(1 − γ) ≤ e/2
        if size == 0.0 or self.gamma == 0.0:
            return 1
        return max(1, math.ceil(math.log(error * (1.0 - self.gamma) / (2.0 * size)) / math.log(self.gamma)))


def _log_plus(x: float) -> float:
    """log⁺ x = log max(x, 1)."""
    return math.log(max(x, 1.0))


def multiplier_norm_bound(xi: float, gamma: float) -> float:
    """‖λ*‖ ≤ ‖λ*‖₁ ≤ 2 / (ξ (1 − γ)) (Lemma upper-dual)."""
    return 2.0 / (xi * (1.0 - gamma))


def theorem_1(cmdp: CMDP, macro_steps: int, eta_dual: float = 1.0, printed: bool = False) -> Theorem1:
    """Theorem 1 for a model, refused where the theorem does not hold."""
    check_bounded(cmdp)
    refuse_averages(cmdp, "the theorem")
    check_alpha(cmdp.num_rows, cmdp.gamma, printed)
    if not 0.0 < eta_dual <= 1.0:
        raise ValueError(f"the theorems need eta_dual in (0, 1], got {eta_dual}")
    if macro_steps < 1:
        raise ValueError(f"the theorems need max_iterations of at least 1, got {macro_steps}")
    return Theorem1(cmdp.gamma, cmdp.num_rows, cmdp.actions, macro_steps, eta_dual, printed)


def check_alpha(constraints: int, gamma: float, printed: bool) -> None:
    """Refuse what makes α zero, and the step 1/α infinite."""
    if constraints == 0:
        raise ValueError("the theorems need at least one constraint: otherwise alpha is 0 and the step infinite")
    if printed and gamma == 0.0:
        raise ValueError("the paper prints alpha = 0 for gamma = 0, an infinite step; use schedule='theory'")


def check_bounded(cmdp: CMDP) -> None:
    """The paper's form: |c_0| ≤ 1, and |c_i| ≤ 1 once the limit is spread over all steps, c_i − (1 − γ) limit_i."""
    spread = np.append(0.0, (1.0 - cmdp.gamma) * cmdp.offsets)
    largest = np.abs(cmdp.costs - spread[:, None]).max(axis=1)
    if largest.max() > 1.0 + 1e-12:
        i = int(largest.argmax())
        what = "the objective" if i == 0 else f"constraint {cmdp.rows[i - 1].name!r} less its limit per step"
        raise ValueError(
            f"the theorems need costs of size at most 1, and {what} reaches {largest[i]:.6g}; divide it by that number"
        )
