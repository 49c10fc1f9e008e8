"""PMD-PD on blocks: the loop of primal_dual.py with a sharded learner, ended by a certificate."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import numpy as np

from cmdpkit.certificates.certificate import Certificate
from cmdpkit.certificates.checker import certificate_of_values, refuted
from cmdpkit.checks import Array
from cmdpkit.cluster.faults import BlocksLost
from cmdpkit.evaluation.patience import Stopped, until
from cmdpkit.exact.columns import COLUMN_ACCURACY
from cmdpkit.primal_dual import Iterate, primal_dual
from cmdpkit.rules.growing import GrowingPMDPD
from cmdpkit.run.budget import Budget
from cmdpkit.run.history import History
from cmdpkit.run.recorder import Row, snapshot, with_averages
from cmdpkit.run.status import Status
from cmdpkit.sharded.crew import RESTARTS, Crew
from cmdpkit.sharded.learner import ShardedLearner
from cmdpkit.sharded.mirror import CURRENT
from cmdpkit.sharded.oracle import Oracle
from cmdpkit.sharded.policy import ShardedPolicy
from cmdpkit.sharded.solve import LATE, PROOF_SHARE, ShardedOutcome

CHECK, REFUTE = 10, 20
"""A proof is tried so often where the rule does not expect it, and of infeasibility first after so many steps."""


@dataclass
class FirstOrder:
    """A run of PMD-PD with growing steps; after a loss of workers it starts again, to the same numbers."""

    crew: Crew
    tol: float
    budget: Budget
    rule: GrowingPMDPD = field(default_factory=GrowingPMDPD)
    rows: list[Row] = field(default_factory=list)

    def solve(self) -> ShardedOutcome:
        """Run until a certificate shows `tol`, or the budget is spent."""
        note = ""
        for attempt in range(RESTARTS + 1):
            try:
                outcome = self._attempt()
                outcome.note = note
                return outcome
            except BlocksLost as loss:
                if attempt == RESTARTS:
                    raise
                note = f"Blocks were lost during the run and built again (last: {loss.names})."
            self.crew.repair()
        raise AssertionError("not reached")

    def _attempt(self) -> ShardedOutcome:
        self.rows.clear()
        model = self.crew.model
        self.bound, self.multipliers = -np.inf, np.zeros(model.num_rows)
        self.proof = Oracle(self.crew, COLUMN_ACCURACY * self.tol * model.fine_scales)
        status = self.budget.spent(0)
        found: Certificate | None = None
        last: Iterate | None = None
        with contextlib.suppress(Stopped), until(self.budget.exhausted):
            learner = ShardedLearner(self.crew)
            for iterate in primal_dual(learner, self.rule) if status is None else ():
                last = iterate
                self._record(iterate)
                found = self._try(iterate)
                if found is not None:
                    status = Status.OPTIMAL if found.infeasibility is None else Status.INFEASIBLE
                status = status or self.budget.spent(len(self.rows))
                if status is not None:
                    break
                self.crew.each("take")
        status = status or self.budget.spent(len(self.rows)) or Status.INTERRUPTED
        if found is None:
            if CURRENT not in self._known():
                self.crew.each("begin")
                self.crew.each("take")
            if last is not None and not self.budget.exhausted():
                self._ask(self._prices(last))
            found = self._certificate(LATE if self.budget.exhausted() else PROOF_SHARE * self.tol)
            if found.optimal(self.tol):
                status = Status.OPTIMAL
        history = History(with_averages(model, self.rows))
        policy = ShardedPolicy.collect(self.crew, [CURRENT], [1.0])
        return ShardedOutcome(status, policy, found, history, len(self.rows))

    def _known(self) -> list[str]:
        names: list[str] = self.crew.one(0, "known")
        return names

    def _record(self, iterate: Iterate) -> None:
        row = Row(iterate.objective, iterate.v, iterate.multipliers, iterate.inner_steps, self.budget.elapsed)
        self.rows.append(row)
        self.budget.tell(snapshot(self.crew.model, row, iterate.k, self.bound))

    # -- proofs ---------------------------------------------------------------------------------------------------

    def _try(self, iterate: Iterate) -> Certificate | None:
        """A certificate of the policy at hand, or that there is none, when that is likely to succeed."""
        model, k = self.crew.model, iterate.k
        arrived = iterate.distance is not None and iterate.distance <= self.tol * model.proof_scale(iterate.objective)
        near = bool((iterate.v <= self.tol * model.fine_scales[1:]).all())
        if near and (arrived or k % CHECK == 0):
            self._ask(self._prices(iterate))
            certificate = self._certificate(PROOF_SHARE * self.tol)
            if certificate.optimal(self.tol):
                return certificate
        if not near and k >= REFUTE and k % REFUTE == 0:
            return self._refute(self._prices(iterate))
        return None

    def _prices(self, iterate: Iterate) -> Array:
        prices: Array = self.crew.model.netted(np.maximum(iterate.weights.constraints / iterate.weights.objective, 0.0))
        return prices

    def _start(self) -> None:
        """Let the oracle start from the most probable actions."""
        self.crew.each("play")
        self.crew.each("adopt")
        self.proof.begun, self.proof.astray = True, True

    def _ask(self, lam: Array) -> None:
        self._start()
        gap = 0.1 * self.tol * self.crew.model.proof_scale(self.rows[-1].objective if self.rows else 0.0)
        bound = self.proof.minimise(np.append(1.0, lam), gap).bound
        if bound > self.bound:
            self.bound, self.multipliers = bound, lam

    def _certificate(self, accuracy: float) -> Certificate:
        model = self.crew.model
        size = model.proof_scale(self.rows[-1].objective if self.rows else 0.0)
        allowed = accuracy * np.append(size, model.fine_scales[1:])
        values, errors = self.proof.prove(CURRENT, allowed)
        return certificate_of_values(model, values, errors, self.multipliers, self.bound)

    def _refute(self, y: Array) -> Certificate | None:
        """When multipliers run away, their direction may prove that the limits cannot be met."""
        if y.sum() <= 0.0:
            return None
        self._start()
        y = y / y.sum()
        margin = self.proof.minimise(np.append(0.0, y)).bound
        if margin <= 0.0:
            return None
        model, allowed = self.crew.model, PROOF_SHARE * self.tol * self.crew.model.fine_scales
        values, errors = self.proof.prove(CURRENT, np.maximum(allowed, 1e-300))
        plain = certificate_of_values(model, values, errors, np.zeros(model.num_rows), np.inf)
        return refuted(model, plain, y, margin)
