"""The prover as an observer: ends a first-order run when a certificate shows the tolerance, or that there is none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cmdpkit.certificates.certificate import Certificate
from cmdpkit.certificates.checker import Guess, certificate_of, refutation
from cmdpkit.checks import Array
from cmdpkit.evaluation.patience import Stopped, until
from cmdpkit.exact.mdp import Oracle, Stop, never
from cmdpkit.model import CMDP, StagedTransitions
from cmdpkit.policy import TabularPolicy
from cmdpkit.primal_dual import Iterate
from cmdpkit.run.recorder import ExactRecorder
from cmdpkit.run.status import Status

GRACE = 0.3
"""Seconds that a run whose time is up may still spend on its certificate, beyond the evaluation of its policy."""


EVALUATED = 3e-3
"""Policies of large models are evaluated to this part of `tol` for their certificates, whose errors are proved."""


NEAR = 0.1
"""A bound that backups have found to this part of what may be missing need not be found better."""


class Proved(NamedTuple):
    """What ends a run: a policy, and its proof of optimality or of infeasibility."""

    policy: TabularPolicy
    certificate: Certificate

    @property
    def status(self) -> Status:
        return Status.OPTIMAL if self.certificate.infeasibility is None else Status.INFEASIBLE


class Prover:
    """Attempts a proof when the method reports convergence, otherwise each time the run has grown by a tenth.

    It does so only when a policy is near enough to the limits.
    """

    def __init__(self, cmdp: CMDP, recorder: ExactRecorder, tol: float, allowed_violation: float, stop: Stop) -> None:
        self.cmdp, self.recorder, self.tol, self.allowed_violation = cmdp, recorder, tol, allowed_violation
        self.stop = stop
        self.next_check = 10
        self.next_refutation, self.next_suspicion = 20, 1
        self.bound = -np.inf  # the largest G(λ) so far
        self.asked: list[tuple[float, Array]] = []  # G(λ) and λ, of all that were asked
        self.closest: tuple[float, Array] | None = None  # smallest distance that a rule has told, and its multipliers
        self.average: list[Array] = []  # the rule's own mean of its multipliers, if it keeps one
        self.multipliers = np.zeros(cmdp.num_rows)
        self.found: Proved | None = None

    def __call__(self, iterate: Iterate) -> Status | None:
        self.found = self._look(iterate)
        return None if self.found is None else self.found.status

    def _look(self, iterate: Iterate) -> Proved | None:
        """A certificate that ends the run at this iterate, and its policy, if there is one."""
        k = iterate.k
        self.average = [iterate.state.average] if hasattr(iterate.state, "average") else []
        if iterate.distance is not None and (self.closest is None or iterate.distance < self.closest[0]):
            self.closest = iterate.distance, iterate.multipliers
        first = 10 if iterate.distance is None else 20  # a method that knows how far it is need not be asked so soon
        if self.tol > 0.0 and k >= self.next_suspicion and self._runs_away(iterate):
            self.next_suspicion = 2 * k
            if (found := self._refute()) is not None:
                return found
        if self.tol == 0.0 or (k < max(first, self.next_check) and not self._promising(iterate)):
            return None
        self.next_check = k + max(10, k // 10)
        near = [(policy, values[0]) for policy, values in self._policies() if self._feasible(values[1:])]
        # A bound that some policy shows to be lower than this proves nothing
        least = [objective - self.tol * self.cmdp.proof_scale(objective) for _, objective in near]
        self.recorder.learner.release()
        for lam in self._candidates() if near else []:
            self._ask(lam, hopeless=min(least))
            for policy, objective in near:
                certificate = self._certificate(policy(), objective)
                if self._proved(certificate):
                    return Proved(policy(), certificate)
        if k >= self.next_refutation:  # also when a policy is near: the limits may be missed by very little
            self.next_refutation = 2 * k
            return self._refute()
        return None

    def _promising(self, iterate: Iterate) -> bool:
        """The method itself expects that it has arrived."""
        size = self.cmdp.proof_scale(iterate.objective)
        return iterate.distance is not None and iterate.distance <= self.tol * size

    def _runs_away(self, iterate: Iterate) -> bool:
        """Whether the limits seem impossible to meet: Σ λ_i V_i(π) is more than objectives can differ by.

        min_π V_0 + Σ λ_i V_i is at most the V_0 of any policy within the limits. So there is none if π, which has been
        improved with λ, is nearly the best one for it.
        """
        objective, *prices = self.recorder.last_weights
        return bool(prices @ iterate.v > objective * self.cmdp.spans[0] / self.cmdp.step_weight)

    def _policies(self) -> list[tuple[Callable[[], TabularPolicy], Array]]:
        last = self.recorder.rows[-1]
        average = self.recorder.values / len(self.recorder.rows)
        return [
            (lambda: self.recorder.policy, np.append(last.objective, last.v)),
            (lambda: self.recorder.average_policy, average),
        ]

    def _feasible(self, v: Array) -> bool:
        return bool((v <= self.allowed_violation * self.cmdp.fine_scales[1:]).all())

    def _proved(self, certificate: Certificate) -> bool:
        """Optimal to `tol`, in the user's definition and relative to the size of the costs."""
        distance = abs(certificate.objective - certificate.bound)
        safe = certificate.feasible(self.allowed_violation)
        return (
            safe and certificate.gap <= self.tol and distance <= self.tol * self.cmdp.proof_scale(certificate.objective)
        )

    def _candidates(self) -> list[Array]:
        closest = [] if self.closest is None else [self.closest[1]]
        last, *mean = self.recorder.candidate_multipliers() or [self.multipliers]
        return [*closest, last, *(self.average or mean)]

    def _ask(self, lam: Array, stop: Stop | None = None, hopeless: float = -np.inf) -> None:
        """Ask for G(λ), and keep the best; G(λ) < `hopeless` is of no use."""
        lam = self.cmdp.netted(lam)
        bound = self._minimise(np.append(1.0, lam), stop or self.stop, hopeless)
        self.asked.append((bound, lam))
        if bound > self.bound:
            self.bound, self.multipliers = bound, lam

    def _minimise(self, weights: Array, stop: Stop, hopeless: float) -> float:
        """A bound on L_w from below, by backups from the values of the last policy.

        Where these would take long, the oracle starts from what is greedy for them.
        """
        learner = self.recorder.learner
        oracle = Oracle(self.cmdp, stop, self.cmdp.pairs.argmin(-self.recorder.policy.log_pi))
        oracle.plan = learner.plan.copy()
        guess = learner.known_values() if learner.policy is self.recorder.policy else None
        if guess is not None and np.isfinite(hopeless) and not isinstance(self.cmdp.transitions, StagedTransitions):
            # L_w(π) − bound may be as large as this, if the bound is not to be hopeless
            excess = float(self.cmdp.initial @ (guess @ weights) - weights[1:] @ self.cmdp.offsets) - hopeless
            bound = oracle.glance(weights, guess, NEAR * excess, excess, learner.factors) if excess > 0.0 else None
            if bound is not None:
                return bound
        learner.release_system()  # one set of factors at a time
        return oracle.minimise(weights, hopeless=hopeless, guess=guess).bound

    def _certificate(self, policy: TabularPolicy, objective: float) -> Certificate:
        """With the bound that is nearest to the policy's objective V_0.

        That is the largest, but for a policy that exceeds a limit by rounding errors only: with steep prices a bound
        can then lie far above what the policy attains, and another one proves it.
        """
        known = [(self.bound, self.multipliers), *self.asked]
        bound, lam = min(known, key=lambda one: abs(objective - one[0]))
        learner, scales = self.recorder.learner, self.cmdp.fine_scales.copy()
        learner.release_system()
        scales[0] = self.cmdp.proof_scale(objective)
        accuracy = EVALUATED * self.tol * scales if learner.is_large else 0.0
        return certificate_of(self.cmdp, policy, lam, bound, learner.plan, accuracy, self._guess(policy))

    def _guess(self, policy: TabularPolicy) -> Guess | None:
        """What the learner knows of a policy."""
        learner = self.recorder.learner
        values = learner.known_values()
        return None if values is None or policy is not learner.policy else Guess(values, learner.state_visits)

    def _refute(self) -> Proved | None:
        """When multipliers run away, their direction is a candidate for a proof that the limits cannot be met."""
        for y in (self.recorder.last_weights[1:], self.recorder.weights[1:]):
            if y.min(initial=0.0) >= 0.0 and (y := self.cmdp.netted(y)).sum() > 0.0:
                margin = self._minimise(np.append(0.0, y / y.sum()), self.stop, hopeless=0.0)
                if margin > 0.0:
                    policy = self.recorder.policy
                    return Proved(policy, refutation(self.cmdp, policy, y / y.sum(), margin))
        return None

    def conclude(self) -> Proved:
        """The better of the last and the average policy, with the best bound that the run has led to."""
        # Where time is up, this much more is spent on a bound and on the average
        end = time.perf_counter() + GRACE
        late = (lambda: time.perf_counter() > end) if self.stop() else never
        with contextlib.suppress(Stopped), until(late):
            for lam in (*self._candidates(), np.zeros(self.cmdp.num_rows)):
                self._ask(lam, late)
        policies = [self.recorder.policy]
        rows, average_values = self.recorder.rows, self.recorder.values / max(1, len(self.recorder.rows))
        certificates = [self._certificate(policies[0], rows[-1].objective if rows else 0.0)]
        with contextlib.suppress(Stopped), until(late):
            average = self.recorder.average_policy
            certificates.append(self._certificate(average, float(average_values[0])))
            policies.append(average)
        # The policy to use: safe enough if there is such a one, then the one proved optimal to the smaller tolerance.
        merits = [(not c.feasible(self.allowed_violation), max(c.gap, c.violation)) for c in certificates]
        best = merits.index(min(merits))
        return Proved(policies[best], certificates[best])

    def suffices(self, certificate: Certificate) -> bool:
        return certificate.optimal(self.tol) and certificate.feasible(self.allowed_violation)

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"next_check": self.next_check, "next_refutation": self.next_refutation}
        state |= {"next_suspicion": self.next_suspicion, "bound": self.bound, "multipliers": self.multipliers}
        state |= {"asked": np.array([[bound, *lam] for bound, lam in self.asked]).reshape(-1, 1 + self.cmdp.num_rows)}
        return state if self.closest is None else state | {"distance": self.closest[0], "closest": self.closest[1]}

    def restore(self, state: dict[str, Any]) -> None:
        self.next_check, self.next_refutation = int(state["next_check"]), int(state["next_refutation"])
        self.next_suspicion = int(state["next_suspicion"])
        self.bound, self.multipliers = float(state["bound"]), np.asarray(state["multipliers"])
        self.asked = [(float(row[0]), np.asarray(row[1:])) for row in state["asked"]]
        self.closest = (float(state["distance"]), np.asarray(state["closest"])) if "distance" in state else None
