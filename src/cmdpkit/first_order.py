"""The watch over the loop: it ends a first-order run with a certificate, by a budget, or at Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from cmdpkit import certificate as proof
from cmdpkit.budget import Budget, Snapshot
from cmdpkit.certificate import Certificate
from cmdpkit.checks import Array
from cmdpkit.learners.exact import ExactLearner
from cmdpkit.mdp import Stop, minimise
from cmdpkit.model import CMDP
from cmdpkit.policy import TabularPolicy
from cmdpkit.primal_dual import Iterate
from cmdpkit.recorder import Recorder
from cmdpkit.result import Outcome, Status


class Proved(NamedTuple):
    """What ends a run: a policy, and its proof of optimality or of infeasibility."""

    policy: TabularPolicy
    certificate: Certificate


class Prover:
    """Looks for a certificate when the method says that it has arrived, and else at every tenth part of the run.

    It does so only when a policy is near enough to the limits.
    """

    def __init__(self, cmdp: CMDP, recorder: Recorder, tol: float, allowed_violation: float, stop: Stop) -> None:
        self.cmdp, self.recorder, self.tol, self.allowed_violation = cmdp, recorder, tol, allowed_violation
        self.stop = stop
        self.next_check = 10
        self.next_refutation = 20
        self.bound = -np.inf
        self.closest: tuple[float, Array] | None = None  # smallest distance that a method has told, and its multipliers
        self.multipliers = np.zeros(cmdp.num_constraints)

    def found(self, iterate: Iterate) -> Proved | None:
        """A certificate that ends the run at this iterate, and its policy, if there is one."""
        k = iterate.k
        if iterate.distance is not None and (self.closest is None or iterate.distance < self.closest[0]):
            self.closest = iterate.distance, iterate.multipliers
        if self.tol == 0.0 or (k < self.next_check and not self._promising(iterate)):
            return None
        self.next_check = k + max(10, k // 10)
        near = [policy for policy, values in self._policies() if self._feasible(values[1:])]
        for lam in self._candidates() if near else []:
            self._ask(lam)
            for policy in near:
                certificate = proof.build(self.cmdp, policy(), self.multipliers, self.bound)
                if self._proved(certificate):
                    return Proved(policy(), certificate)
        if k >= self.next_refutation:  # also when a policy is near: the limits may be missed by a hair
            self.next_refutation = 2 * k
            return self._refute()
        return None

    def _promising(self, iterate: Iterate) -> bool:
        """The method itself thinks that it has arrived."""
        size = self.cmdp.proof_scale(iterate.objective)
        return iterate.distance is not None and iterate.distance <= self.tol * size

    def _policies(self) -> list[tuple[Callable[[], TabularPolicy], Array]]:
        last = self.recorder.rows[-1]
        average = self.recorder.values / len(self.recorder.rows)
        return [
            (lambda: self.recorder.policy, np.append(last[0], last[1])),
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
        return closest + self.recorder.candidate_multipliers() or [self.multipliers]

    def _ask(self, lam: Array) -> None:
        """Ask for G(λ), and keep the best."""
        choice = self.recorder.policy.log_probabilities.argmax(axis=1)
        bound = minimise(self.cmdp, np.append(1.0, lam), choice, self.stop).bound
        if bound > self.bound:
            self.bound, self.multipliers = bound, lam

    def improve_bound(self) -> None:
        """Ask for G(λ) at all candidate multipliers."""
        for lam in self._candidates():
            self._ask(lam)

    def snapshot(self, iterate: Iterate, elapsed: float) -> Snapshot:
        cmdp = self.cmdp
        return Snapshot(
            iteration=iterate.k,
            objective=cmdp.user_objective(iterate.objective),
            violation=float((cmdp.violations(iterate.v) / cmdp.tolerance_scales).max(initial=0.0)),
            bound=float(cmdp.user_objective(self.bound)),
            multipliers=iterate.multipliers,
            time=elapsed,
        )

    def _refute(self) -> Proved | None:
        """When multipliers run away, their direction is a candidate for a proof that the limits cannot be met."""
        for y in (self.recorder.last_weights[1:], self.recorder.weights[1:]):
            if y.min(initial=0.0) >= 0.0 and y.sum() > 0.0:
                margin = minimise(self.cmdp, np.append(0.0, y / y.sum()), stop=self.stop).bound
                if margin > 0.0:
                    policy = self.recorder.policy
                    return Proved(policy, proof.build_infeasible(self.cmdp, policy, y / y.sum(), margin))
        return None


def run(
    cmdp: CMDP,
    learner: ExactLearner,
    iterates: Iterator[Iterate],
    budget: Budget,
    tol: float,
    allowed_violation: float | None = None,
) -> Outcome:
    """Follow the iterates until a certificate shows `tol`, the budget is spent, or Ctrl-C is pressed.

    `allowed_violation` is that of the policy to return, relative like `tol`, and `tol` itself by default.
    """
    allowed = tol if allowed_violation is None else allowed_violation
    recorder = Recorder(cmdp, learner)
    prover = Prover(cmdp, recorder, tol, allowed, budget.exhausted)
    status = budget.spent(0)
    while status is None:
        iterate = next(iterates)
        recorder.add(iterate, budget.elapsed)
        found = prover.found(iterate)
        if budget.watch is not None:
            budget.tell(prover.snapshot(iterate, budget.elapsed))
        if found is not None:
            infeasible = found.certificate.infeasibility is not None
            return _outcome(Status.INFEASIBLE if infeasible else Status.OPTIMAL, *found, recorder)
        status = budget.spent(iterate.k)
    prover.improve_bound()
    policies = [recorder.policy, recorder.average_policy]
    certificates = [proof.build(cmdp, policy, prover.multipliers, prover.bound) for policy in policies]
    # The policy to use: safe enough if there is such a one, then the one proved optimal to the smaller tolerance.
    merits = [(not c.feasible(allowed), max(c.gap, c.violation)) for c in certificates]
    best = merits.index(min(merits))
    if certificates[best].optimal(tol) and certificates[best].feasible(allowed):
        status = Status.OPTIMAL
    return _outcome(status, policies[best], certificates[best], recorder)


def _outcome(status: Status, policy: TabularPolicy, certificate: Certificate, recorder: Recorder) -> Outcome:
    return Outcome(
        status=status,
        policy=policy,
        certificate=certificate,
        history=recorder.history(),
        iterations=len(recorder.rows),
        last_policy=recorder.policy,
        average_policy=recorder.average_policy,
    )
