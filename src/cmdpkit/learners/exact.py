"""The exact tabular learner: natural-gradient steps with values from linear algebra."""

from __future__ import annotations

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.backup import advantages, look_ahead
from cmdpkit.evaluation.system import Plan, PolicySystem
from cmdpkit.model import CMDP
from cmdpkit.policy import TabularPolicy
from cmdpkit.rules import Weights


class ExactLearner:
    """Natural policy gradient on a known model, by exact evaluation.

    Args:
        cmdp: the model.
        policy: π_0, with no zero probabilities (mirror descent can never leave a zero).
        step: the effective step: π is multiplied by exp(−step · Q̃). The paper's η is step · (1 − γ).
        inner_steps: t_k, natural-gradient steps for each dual update.
        alpha: weight of the KL divergence to the anchor π_k, by default 1/step as in Theorem 1 (there η = (1 − γ)/α).
            It has no effect when inner_steps is 1, where it cancels.
        fixed_anchor: anchor at this policy for ever, instead of at π_k. With the uniform policy the divergence is the
            negative entropy, up to a constant: entropy-regularised policy gradient.
        natural: False takes plain gradient steps in the softmax parameters instead of natural ones.
    """

    def __init__(
        self,
        cmdp: CMDP,
        policy: TabularPolicy,
        step: float = 1.0,
        inner_steps: int = 1,
        alpha: float | None = None,
        fixed_anchor: TabularPolicy | None = None,
        natural: bool = True,
    ) -> None:
        self.cmdp = cmdp
        self.step = step
        self.inner_steps = inner_steps
        self.alpha = alpha
        self.fixed_anchor = fixed_anchor
        self.natural = natural
        self.accuracy = 0.0  # relative error that evaluations may have; 0 is as exact as rounding allows
        self._plan = Plan()
        self._tables = cmdp.costs.reshape(-1, cmdp.states, cmdp.actions)
        self._largest_values = cmdp.cost_sizes / (1.0 - cmdp.gamma)
        self._values: Array | None = None  # the last ones known, to start from
        self._visits: Array | None = None
        self.move_to(policy)

    def move_to(self, policy: TabularPolicy) -> None:
        """Make `policy` the current one: factorise its system, find its occupancy and all m + 1 values."""
        self.policy = policy
        self._system = PolicySystem(self.cmdp, policy.probabilities, plan=self._plan)
        # V_i(ρ) = ⟨d_ρ, c_i⟩ / (1 − γ): one transposed solve gives the values of all costs
        self.state_visits = self._visits = self._system.state_occupancy(self._visits, self.accuracy)
        self.occupancy = self.state_visits[:, None] * policy.probabilities
        values = self.cmdp.costs @ self.occupancy.ravel()
        self._objective = float(values[0])
        self._v = values[1:] - self.cmdp.offsets

    def objective_value(self) -> float:
        return self._objective

    def constraint_values(self) -> Array:
        return self._v

    def improve(self, weights: Weights) -> int:
        """t_k steps of regularised natural gradient on c̃, anchored at the current policy (eq. npg-entropy)."""
        anchor = (self.fixed_anchor or self.policy).log_probabilities
        # c̃ = w_0 c_0 + Σ w_i c_i                                                        (eq. tilde-c)
        mix = np.array([weights.objective, *weights.constraints])
        cost = (mix @ self.cmdp.costs).reshape(self._tables.shape[1:])
        guess = None if self._values is None else self._values @ mix
        steps = weights.inner_steps or self.inner_steps
        for t in range(1, steps + 1):
            before = self.policy.log_probabilities
            self.move_to(self._regularised_step(cost, anchor, weights.step or self.step, guess))
            # A long inner loop often reaches its fixed point early; further steps would only shuffle the last bits.
            if 2 < t < steps and _within_rounding(before, self.policy.log_probabilities):
                break
        return steps

    def _regularised_step(self, cost: Array, anchor: Array, step: float, guess: Array | None) -> TabularPolicy:
        pi, log_pi = self.policy.probabilities, self.policy.log_probabilities
        alpha = 1.0 / step if self.alpha is None else self.alpha
        pull = alpha * (log_pi - anchor)
        # Ṽ_α = (I − γ P_π)⁻¹ Σ_a π (c̃ + α log(π / π_k))                              (eq. regu-V)
        error = self.accuracy * float(np.abs(cost).max()) / (1.0 - self.cmdp.gamma) if self.accuracy else 0.0
        values = self._system.state_values((pi * (cost + pull)).sum(axis=1), guess, error)
        ahead = look_ahead(self.cmdp, values).reshape(cost.shape)
        # log π' = (1 − step·α) log π − step · Q̃_α − log Z,                            (eq. npg-entropy)
        # Q̃_α = c̃ − α log π_k + γ P Ṽ_α                                                (eq. regu-Q)
        # The terms in α are joined, so that they cancel exactly in the first inner step, where π = π_k.
        direction = cost + ahead + pull
        if not self.natural:
            # ∂Ṽ_α/∂θ(s, a) = x(s) π(a|s) (Q̃(s, a) − Ṽ(s)), with the soft action value Q̃ in `direction`
            direction = self.occupancy * (direction - values[:, None])
        return TabularPolicy.softmax(log_pi - step * direction)

    def state_values(self) -> Array:
        """V_i(s) of all costs i = 0..m, as (S, m + 1)."""
        policy_costs = np.einsum("isa,sa->si", self._tables, self.policy.probabilities)
        self._values = self._system.state_values(policy_costs, self._values, self.accuracy * self._largest_values)
        return self._values

    def advantages(self) -> Array:
        """A_i(s, a) = Q_i(s, a) − V_i(s) of all costs i = 0..m, as (S·A, m + 1)."""
        return advantages(self.cmdp, self.state_values())


def _within_rounding(one: Array, other: Array) -> bool:
    return bool(np.abs(one - other).max() <= 4.0 * np.finfo(float).eps * max(1.0, np.abs(other).max()))
