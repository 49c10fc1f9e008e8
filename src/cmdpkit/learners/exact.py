"""The exact tabular learner: natural-gradient steps with values from linear algebra."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from cmdpkit.checks import Array, ConstraintArray, PairTable, StateArray
from cmdpkit.evaluation.backup import advantages, gain, is_compiled, look_ahead
from cmdpkit.evaluation.factors import Order
from cmdpkit.evaluation.gains import policy_system
from cmdpkit.evaluation.patience import breathe
from cmdpkit.evaluation.system import Plan, PolicySystem
from cmdpkit.learners.exact_view import ExactView
from cmdpkit.learners.tabular import above_floor, projected, reference_span, within_radius
from cmdpkit.model import CMDP
from cmdpkit.policy import TabularPolicy
from cmdpkit.policy.tabular import UNHEARD
from cmdpkit.rules.base import Weights, refuse

UNSEEN = 1e-20
"""Smaller probabilities are left out of the chain: they change no sum of its rows, and most actions have such ones."""

BACKUPS, TURN = 40, 10
"""At most, before a mirror step, and after how many of them their rate is judged (measured: docs/decisions.md)."""


class ExactLearner:
    """Natural policy gradient on a known model, by exact evaluation.

    Args:
        cmdp: the model.
        policy: π_0, without zero probabilities (mirror descent can never leave a zero).
        step: the effective step: π is multiplied by exp(−step · Q̃). The paper's η is step · (1 − γ).
        inner_steps: t_k, natural-gradient steps per dual update.
        alpha: weight of the KL divergence to the anchor π_k, by default 1/step as in Theorem 1 (there η = (1 − γ)/α).
            It has no effect when inner_steps is 1, where it cancels.
        fixed_anchor: anchor at this policy throughout, instead of at π_k. With the uniform policy the divergence is the
            negative entropy, up to a constant: entropy-regularised policy gradient.
        natural: False for plain gradient steps in the softmax parameters instead of natural ones.
        floor: log-probabilities are raised to this before a step; growing steps need one to be reversible.
        accuracy: relative error that the evaluation of π_0 may have; later ones have what `Weights` say.
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
        floor: float = -np.inf,
        accuracy: float = 0.0,
    ) -> None:
        self.cmdp = cmdp
        self.step = step
        self.inner_steps = inner_steps
        self.alpha = alpha
        self.fixed_anchor = fixed_anchor
        self.natural = natural
        self.floor = floor
        self.is_large = is_compiled(cmdp.transitions)  # then tables are given up where that costs little
        self.accuracy = accuracy  # relative error allowed in evaluations; 0 means up to rounding
        self._plan = Plan()
        self._largest_values = cmdp.cost_sizes / cmdp.step_weight
        self._scales = reference_span(cmdp.spans)
        self._values: Array | None = None  # the last values, as a first guess
        self._visits: StateArray | None = None
        self._known_system: PolicySystem | None = None
        self._view: weakref.ref[ExactView] | None = None  # the last one
        self._anchor = policy  # of the last step
        self._centre: TabularPolicy | None = None  # π̂, the second policy of optimistic steps
        self.log_normaliser: StateArray | None = None  # ℓ of the last step, where it was a plain mirror step
        self.move_to(policy)

    @property
    def plan(self) -> Plan:
        """The method that suits the chains of the model."""
        return self._plan

    def move_to(self, policy: TabularPolicy) -> None:
        """Make `policy` the current one: factorise its system, compute its occupancy and all m + 1 values."""
        self.policy = self._evaluated = policy
        self._known_system = None
        self._visit(self._system.state_occupancy(self._visits, self.accuracy))
        self._values_are_current = False

    @property
    def _system(self) -> PolicySystem:
        """Of the policy that is evaluated, before log-probabilities are raised to the floor."""
        if self._known_system is None:
            self._known_system = policy_system(self.cmdp, self._played(), plan=self._plan)
        return self._known_system

    def _played(self) -> PairTable:
        """π(a|s) of the policy that is evaluated, without what is never seen."""
        pi = self._evaluated.pi
        if self.cmdp.criterion == "average":  # there it may be what keeps two parts together
            return pi
        return np.where(pi < UNSEEN, 0.0, pi)

    @property
    def factors(self) -> PolicySystem | None:
        """The system of the current policy, if it is solved by factors and discounted sums are its values."""
        return self._system if self._plan.has_factors and self.cmdp.criterion != "average" else None

    def release(self) -> None:
        """Give up what is large and quickly made again: advantages, and a chain that is only swept."""
        if self.is_large:
            self._release_chain()
            self._forget_view()

    def release_system(self) -> None:
        """Give up the system of a large model, and its factors."""
        if self.is_large:
            self._known_system = None

    def _release_chain(self) -> None:
        if self._plan.method == "sweeps":
            self._known_system = None

    def _forget_view(self) -> None:
        view = None if self._view is None else self._view()
        if view is not None:
            view.forget()

    def _visit(self, visits: StateArray) -> None:
        # V_i(ρ) = ⟨d_ρ, c_i⟩ / (1 − γ): one transposed solve gives the values of all costs
        self.state_visits = self._visits = visits
        self._take_values(self.cmdp.costs @ self.occupancy.ravel())

    def _take_values(self, values: Array) -> None:
        self._objective = float(values[0])
        self.discounted_costs: ConstraintArray = values[1:]  # limits not subtracted
        self._v = values[1:] - self.cmdp.offsets

    @property
    def occupancy(self) -> PairTable:
        """x(s) π(a|s), expected visits to the pairs."""
        return np.asarray(self.cmdp.pairs.over(self.state_visits) * self.policy.pi)

    @property
    def _kind_of_view(self) -> type[ExactView]:
        return ExactView

    def add_occupancy(self, total: PairTable) -> None:
        """Add x(s) π(a|s) to a table."""
        total += self.occupancy

    def look(self) -> ExactView:
        discount = 0.0 if self.cmdp.criterion == "average" else self.cmdp.gamma  # 1 − discount: a step's weight
        view = self._kind_of_view(self._objective, self._v, self._scales, discount, self, self.policy)
        self._view = weakref.ref(view)
        return view

    def improve(self, weights: Weights) -> int:
        """t_k steps of regularised natural gradient on c̃, anchored as `weights.anchor` says (eq. npg-entropy)."""
        refuse(self, weights, "allowed_growth")  # it is judged on samples of the old policy
        foreseen = self._foreseen(weights)
        self._forget_view()  # it is of the policy that is left now
        self.accuracy = 0.0 if weights.accuracy is None else weights.accuracy
        if weights.anchor == "return":
            self.move_to(self._anchor)
        self.policy = self._raised(foreseen is not None)
        if weights.anchor != "keep":
            self._anchor = self.policy
        if foreseen is not None:
            policy, self.log_normaliser = foreseen
            del foreseen
            self.move_to(policy)
            return 1
        anchor, alpha = (self.fixed_anchor or self._anchor).log_pi, self.alpha
        if weights.entropy is not None:
            anchor, alpha = np.log(self.cmdp.pairs.uniform()), weights.entropy
        # c̃ = w_0 c_0 + Σ w_i c_i                                                        (eq. tilde-c)
        mix = np.array([weights.objective, *weights.constraints])
        cost, pairs = self.cmdp.pairs.like(mix @ self.cmdp.costs), self.cmdp.pairs
        guess = None if self._values is None else self._values @ mix
        steps = self.inner_steps if weights.inner_steps is None else weights.inner_steps
        step = self.step if weights.step is None else weights.step
        for t in range(1, steps + 1):
            before = self.policy.log_pi
            if weights.optimistic:
                self.move_to(self._optimistic(cost, step, guess))
                continue
            direction, values = self._direction(cost, anchor, step, alpha, guess)
            if weights.visit_error is not None and step and alpha is None and self.natural:
                direction, values = self._backed_up(cost, anchor, step, values, weights.visit_error)
            if self.is_large:
                self._release_chain()
            policy = TabularPolicy.softmax(pairs, before - step * direction)
            # log π′ = log π_k − step (c̃ + γPṼ) + step Ṽ − ℓ: any action tells ℓ, if step · α = 1 or t = 1
            rows = pairs.rows(0)
            first = before.ravel()[rows] - step * direction.ravel()[rows] - policy.log_pi.ravel()[rows]
            self.log_normaliser = first + step * values if self.natural else None
            del direction
            if weights.radius is not None:
                policy = within_radius(self.policy, policy, weights.radius, self.state_visits)
                self.log_normaliser = None
            if t == steps:
                del before, cost, anchor  # large tables are not kept while the next policy is evaluated
            self.move_to(policy)
            # A long inner loop often reaches its fixed point early; further steps would only change the last bits.
            if 2 < t < steps and _within_rounding(before, self.policy.log_pi):
                break
        return steps

    def _raised(self, is_left: bool) -> TabularPolicy:
        """The current policy above the floor; `is_left` says whether it is only an anchor from now on."""
        return above_floor(self.policy, self.floor)

    def _foreseen(self, weights: Weights) -> tuple[TabularPolicy, StateArray] | None:
        """The policy of a plain mirror step and its ℓ, where the response to such a step was asked for."""
        view = None if self._view is None else self._view()
        more = (weights.radius, weights.entropy, self.alpha, self.fixed_anchor)
        steps = self.inner_steps if weights.inner_steps is None else weights.inner_steps
        plain = steps == 1 and self.natural and not weights.optimistic and all(each is None for each in more)
        if view is None or not plain or weights.objective != 1.0 or weights.anchor == "return":
            return None
        found = view.stepped(weights.constraints, weights.step, weights.anchor == "keep")
        if found is None or weights.visit_error is None or self._held(found[1]) <= weights.visit_error:
            return found
        return None  # the values need backups first

    def _held(self, level: StateArray) -> float:
        """What held visits may cost a step with this ℓ, by the visits of the current policy."""
        return float(self.state_visits @ (level.max() - level))

    def _direction(
        self, cost: PairTable, anchor: PairTable, step: float, alpha: float | None, guess: StateArray | None
    ) -> tuple[PairTable, StateArray]:
        """The direction to descend in log π (the soft action values, or the plain gradient), and the soft values."""
        log_pi, pairs = self.policy.log_pi, self.cmdp.pairs
        alpha = (1.0 / step if step else 0.0) if alpha is None else alpha
        to_anchor = alpha * (log_pi - anchor)
        # Ṽ_α = (I − γ P_π)⁻¹ Σ_a π (c̃ + α log(π / π_k))                              (eq. regu-V)
        if guess is not None and self._values_are_current and anchor is log_pi:
            values = guess  # the values of all costs are known, and nothing is added to them
        else:
            values = self._soft_values(cost, to_anchor, alpha, guess)
        ahead = pairs.like(look_ahead(self.cmdp, values))
        # log π' = (1 − step·α) log π − step · Q̃_α − log Z,                            (eq. npg-entropy)
        # Q̃_α = c̃ − α log π_k + γ P Ṽ_α                                                (eq. regu-Q)
        # The terms in α are combined: they cancel exactly in the first inner step, where π = π_k.
        direction = cost + ahead + to_anchor
        if not self.natural:
            # ∂Ṽ_α/∂θ(s, a) = x(s) π(a|s) (Q̃(s, a) − Ṽ(s)), with the soft action value Q̃ in `direction`
            direction = self.occupancy * (direction - pairs.over(values))
        return direction, values

    def _soft_values(self, cost: PairTable, to_anchor: PairTable, alpha: float, guess: StateArray | None) -> StateArray:
        policy_cost = self.cmdp.pairs.sum(self.policy.pi * (cost + to_anchor))
        return self._system.state_values(policy_cost, guess, self._allowed(cost))

    def _allowed(self, cost: PairTable) -> float:
        """The error that evaluations may have."""
        return self.accuracy * float(np.abs(cost).max()) / self.cmdp.step_weight if self.accuracy else 0.0

    def _optimistic(self, cost: PairTable, step: float, guess: StateArray | None) -> TabularPolicy:
        pairs, pi = self.cmdp.pairs, self.policy.pi
        values = self._system.state_values(pairs.sum(pi * cost), guess, self._allowed(cost))
        move = step * (cost + pairs.like(look_ahead(self.cmdp, values)))
        # π̂ ← P(π̂ − step · Q̃),   π ← P(π̂ − step · Q̃)
        self._centre = projected(pairs, (self._centre or self.policy).pi - move)
        return projected(pairs, self._centre.pi - move)

    def _backed_up(
        self, cost: PairTable, anchor: PairTable, step: float, values: StateArray, allowed: float
    ) -> tuple[PairTable, StateArray]:
        """Direction and values after soft Bellman backups, which contract to the proximal step for these weights.

        Where they have become slow, as in states that are hardly left, the evaluation of the next policy does more.
        """
        pairs, best, least, before = self.cmdp.pairs, values, np.inf, np.inf
        fixed = anchor - step * cost
        for n in range(1, BACKUPS + 1):
            breathe()
            # ℓ = log Σ_a π_k exp(−step (c̃ + γPV)) + step V, and V ← V − ℓ/step
            logits = pairs.like(look_ahead(self.cmdp, values))  # worked on in place: there are many backups
            logits *= -step
            logits += fixed
            top = pairs.max(logits)
            logits -= pairs.over(top)
            np.exp(np.maximum(logits, UNHEARD, out=logits), out=logits)
            level = top + np.log(pairs.sum(logits)) + step * values
            error = self._held(level)
            if error < least:
                best, least = values, error
            if error <= allowed:
                break
            if n % TURN == 0:
                rate = min(1.0, error / before)
                if rate ** ((BACKUPS - n) / TURN) > 0.5:  # those that are left would not halve the error
                    break
                before = error
            values = values - level / step
        direction = cost + pairs.like(look_ahead(self.cmdp, best)) + (self.policy.log_pi - anchor) / step
        return direction, best

    def state_values(self) -> Array:
        """V_i(s) of all costs i = 0..m, as (S, m + 1)."""
        if self._values is None or not self._values_are_current:
            policy_costs = self.cmdp.pairs.expect(self.policy.pi, self.cmdp.costs)
            accuracy = self.accuracy * self._largest_values
            self._values = self._system.state_values(policy_costs, self._values, accuracy)
            self._values_are_current = True
        return self._values

    def known_values(self) -> Array | None:
        """The same, if they are known."""
        return self._values if self._values_are_current else None

    def advantages(self) -> Array:
        """A_i(s, a) = Q_i(s, a) − V_i(s) of all costs i = 0..m, as (N, m + 1)."""
        values = self.state_values()
        if self.is_large:
            self._release_chain()
        return advantages(self.cmdp, values)

    def divergence_from_anchor(self) -> float:
        """Σ_s x(s) Σ_a π(a|s) log(π/π_k)(a|s) for the anchor π_k of the last step."""
        to_anchor = self.policy.log_pi - self._anchor.log_pi
        return float((self.occupancy * to_anchor).sum())

    def anchor_advantages(self) -> Array:
        """Advantages of the cost log(π/π_k), whose value K is the discounted divergence from the anchor."""
        pairs = self.cmdp.pairs
        to_anchor = above_floor(self.policy, self.floor).log_pi - self._anchor.log_pi
        values = self._system.state_values(pairs.sum(self.policy.pi * to_anchor))
        ahead = look_ahead(self.cmdp, values) - gain(self.cmdp, values)
        return np.asarray(to_anchor + pairs.like(ahead) - pairs.over(values))

    def state(self) -> dict[str, Any]:
        state = {
            "log_probabilities": self.policy.log_pi,
            "anchor": self._anchor.log_pi,
            "visits": self.state_visits,
            "accuracy": self.accuracy,
            "plan": self._plan.method or "",
            "values_are_current": self._values_are_current,
        }
        if self._centre is not None:
            state |= {"centre": self._centre.log_pi}
        if self._plan.order.is_used:  # else it is found again
            state |= {"order": self._plan.order.states, "fill": self._plan.order.fill}
        return state if self._values is None else state | {"values": self._values}

    def restore(self, state: dict[str, Any]) -> None:
        self.accuracy, self._plan = float(state["accuracy"]), Plan(str(state["plan"]) or None)
        if "order" in state:
            self._plan.order = Order(np.asarray(state["order"]), int(state["fill"]), True)
        self.policy = self._evaluated = TabularPolicy.stored(self.cmdp.pairs, state["log_probabilities"])
        self._anchor = TabularPolicy.stored(self.cmdp.pairs, state["anchor"])
        self._centre = TabularPolicy.stored(self.cmdp.pairs, state["centre"]) if "centre" in state else None
        self._known_system = None
        # Visits and values are restored: an iterative solver need not reproduce the last bits.
        self._visit(np.asarray(state["visits"]))
        self._values, self._values_are_current = state.get("values"), bool(state["values_are_current"])


def _within_rounding(one: PairTable, other: PairTable) -> bool:
    return bool(np.abs(one - other).max() <= 4.0 * np.finfo(float).eps * max(1.0, np.abs(other).max()))
