"""First-order methods: their defaults, and the watch over the loop that ends them with a certificate or by a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cmdpkit import certificate as proof
from cmdpkit.balance import balanced_primal_dual, reference_span
from cmdpkit.budget import Budget, Snapshot
from cmdpkit.certificate import Certificate, check_multipliers
from cmdpkit.checks import Array
from cmdpkit.learners.exact import ExactLearner
from cmdpkit.linprog import slater_margin
from cmdpkit.mdp import minimise
from cmdpkit.model import CMDP
from cmdpkit.options import check_start
from cmdpkit.policy import TabularPolicy
from cmdpkit.primal_dual import Iterate, primal_dual
from cmdpkit.recorder import Recorder
from cmdpkit.result import Status
from cmdpkit.rules import CRPO, NPG, NPGPD, PMDPD, Rule


def build(cmdp: CMDP, method: str, options: dict[str, Any]) -> tuple[ExactLearner, Iterator[Iterate]]:
    """Learner and iterates of a first-order method; what the user leaves open is set from the model's scales."""
    spans = reference_span(cmdp.spans)
    policy = options.get("initial_policy")
    multipliers = options.get("initial_multipliers")
    learner = ExactLearner(
        cmdp,
        TabularPolicy.uniform(cmdp.states, cmdp.actions) if policy is None else check_start(policy, cmdp),
        step=options.get("step") or 5.0 / (spans.max() if method == "crpo" else spans[0]),
        inner_steps=options.get("inner_steps") or 1,
        alpha=options.get("alpha"),
    )
    if multipliers is not None:
        multipliers = check_multipliers(multipliers, cmdp.num_constraints, "initial_multipliers")
    eta_dual = options.get("eta_dual")
    if eta_dual is not None:
        eta_dual = np.asarray(eta_dual, dtype=float)
    if method == "pmd-pd" and eta_dual is None and options.get("step") is None:
        return learner, balanced_primal_dual(learner, multipliers)
    if eta_dual is None:
        eta_dual = 3.0 * (1.0 - cmdp.gamma) * spans[0] / spans[1:] ** 2
    rule: Rule
    if method == "pmd-pd":
        rule = PMDPD(eta_dual)
    elif method == "npg-pd":
        cap = options.get("dual_cap")
        rule = NPGPD(eta_dual, _default_dual_cap(cmdp) if cap is None else cap)
    elif method == "crpo":
        rule = CRPO(options.get("tolerance") or 0.0)
    else:
        rule = NPG()
    return learner, primal_dual(learner, rule, multipliers)


def _default_dual_cap(cmdp: CMDP) -> float:
    """The paper's 2/((1 − γ) ξ) for costs up to 1 in size; larger costs scale it. No cap without a Slater point."""
    xi = slater_margin(cmdp)
    return 2.0 * max(1.0, float(np.abs(cmdp.costs[0]).max())) / ((1.0 - cmdp.gamma) * xi) if xi > 0.0 else np.inf


class Prover:
    """Looks for a certificate now and then: at every tenth part of the run, and only when a policy is near enough."""

    def __init__(self, cmdp: CMDP, recorder: Recorder, tol: float) -> None:
        self.cmdp, self.recorder, self.tol = cmdp, recorder, tol
        self.next_check = 10
        self.next_refutation = 100
        self.bound = -np.inf
        self.multipliers = np.zeros(cmdp.num_constraints)
        self.infeasible: Certificate | None = None

    def found(self, k: int) -> Certificate | None:
        """A certificate that ends the run at macro step k, if there is one."""
        if self.tol == 0.0 or k < self.next_check:
            return None
        self.next_check = k + max(10, k // 10)
        near = [policy for policy, values in self._policies() if self._feasible(values[1:])]
        if near:
            self.improve_bound()
            return next((c for c in map(self.certificate, near) if self._proved(c)), None)
        if k >= self.next_refutation:
            self.next_refutation = 2 * k
            return self._refute()
        return None

    def _policies(self) -> list[tuple[Callable[[], TabularPolicy], Array]]:
        last = self.recorder.rows[-1]
        average = self.recorder.values / len(self.recorder.rows)
        return [
            (lambda: self.recorder.policy, np.append(last[0], last[1])),
            (lambda: self.recorder.average_policy, average),
        ]

    def _feasible(self, v: Array) -> bool:
        return bool((v <= self.tol * self.cmdp.fine_scales[1:]).all())

    def _proved(self, certificate: Certificate) -> bool:
        """Optimal to `tol`, in the user's definition and relative to the size of the costs."""
        distance = abs(certificate.objective - certificate.bound)
        scale = max(abs(certificate.objective), float(self.cmdp.fine_scales[0]))
        return certificate.optimal(self.tol) and distance <= self.tol * scale

    def improve_bound(self) -> None:
        """Ask for G(λ) at the candidate multipliers and keep the best."""
        choice = self.recorder.policy.log_probabilities.argmax(axis=1)
        for lam in self.recorder.candidate_multipliers() or [self.multipliers]:
            bound = minimise(self.cmdp, np.append(1.0, lam), choice).bound
            if bound > self.bound:
                self.bound, self.multipliers = bound, lam

    def certificate(self, policy: Callable[[], TabularPolicy]) -> Certificate:
        return proof.build(self.cmdp, policy(), self.multipliers, self.bound)

    def snapshot(self, iterate: Iterate, elapsed: float) -> Snapshot:
        cmdp = self.cmdp
        return Snapshot(
            iteration=iterate.k,
            objective=cmdp.user_objective(iterate.objective),
            violation=float((np.maximum(iterate.v, 0.0) / cmdp.tolerance_scales).max(initial=0.0)),
            bound=cmdp.user_objective(self.bound),
            multipliers=iterate.multipliers,
            time=elapsed,
        )

    def _refute(self) -> Certificate | None:
        """When multipliers run away, their direction is a candidate for a proof that the limits cannot be met."""
        for y in (self.recorder.last_weights[1:], self.recorder.weights[1:]):
            if y.min() >= 0.0 and y.sum() > 0.0:
                margin = minimise(self.cmdp, np.append(0.0, y / y.sum())).bound
                if margin > 0.0:
                    return proof.build_infeasible(self.cmdp, self.recorder.policy, y / y.sum(), margin)
        return None


@dataclass(frozen=True)
class Outcome:
    """How a first-order run ended."""

    status: Status
    policy: TabularPolicy
    certificate: Certificate
    recorder: Recorder


def run(cmdp: CMDP, learner: ExactLearner, iterates: Iterator[Iterate], budget: Budget, tol: float) -> Outcome:
    """Follow the iterates until a certificate shows `tol`, the budget is spent, or Ctrl-C is pressed."""
    recorder = Recorder(cmdp, learner)
    prover = Prover(cmdp, recorder, tol)
    status = budget.spent(0)
    try:
        while status is None:
            iterate = next(iterates)
            recorder.add(iterate, budget.elapsed)
            found = prover.found(iterate.k)
            if found is not None:
                status = Status.INFEASIBLE if found.infeasibility is not None else Status.OPTIMAL
                if status is Status.INFEASIBLE:
                    return Outcome(status, recorder.policy, found, recorder)
            else:
                stop = budget.tell(prover.snapshot(iterate, budget.elapsed)) if budget.watch else None
                status = stop or budget.spent(iterate.k)
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    prover.improve_bound()
    policies = [recorder.policy, recorder.average_policy]
    certificates = [proof.build(cmdp, policy, prover.multipliers, prover.bound) for policy in policies]
    # The policy to use is the one that is proved optimal to the smaller tolerance.
    best = min(range(2), key=lambda i: max(certificates[i].gap, certificates[i].violation))
    if certificates[best].optimal(tol):
        status = Status.OPTIMAL
    return Outcome(status, policies[best], certificates[best], recorder)
