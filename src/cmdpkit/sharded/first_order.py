"""PMD-PD on blocks: the loop of primal_dual.py with a sharded learner, ended by a certificate."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cmdpkit.certificates.certificate import Certificate
from cmdpkit.certificates.checker import certificate_of_values, refuted
from cmdpkit.checks import Array
from cmdpkit.evaluation.patience import Stopped, until
from cmdpkit.exact.columns import COLUMN_ACCURACY
from cmdpkit.primal_dual import Iterate, primal_dual
from cmdpkit.rules.base import with_multipliers
from cmdpkit.rules.growing import GrowingPMDPD
from cmdpkit.run.budget import Budget
from cmdpkit.run.driver import fields_of, state_like
from cmdpkit.run.history import History
from cmdpkit.run.outcome import Outcome
from cmdpkit.run.recorder import Row, rows_as_columns, rows_from_columns, snapshot, with_averages
from cmdpkit.run.status import Status
from cmdpkit.sharded.crew import Crew
from cmdpkit.sharded.folder import Folder
from cmdpkit.sharded.learner import ShardedLearner
from cmdpkit.sharded.mirror import CURRENT
from cmdpkit.sharded.oracle import Oracle
from cmdpkit.sharded.solve import LATE, PROOF_SHARE

CHECK, REFUTE = 10, 20
"""A proof is tried so often where the rule does not expect it, and of infeasibility first after so many steps."""


@dataclass
class FirstOrder:
    """A run of PMD-PD with growing steps; after a loss of workers it continues from its checkpoint, or starts again.

    Either way it ends with the same numbers.
    """

    crew: Crew
    tol: float
    budget: Budget
    checkpoint: Path | None = None
    rule: GrowingPMDPD = field(default_factory=GrowingPMDPD)
    multipliers: Array | None = None  # to start from
    rows: list[Row] = field(default_factory=list)

    def solve(self) -> Outcome:
        """Run until a certificate shows `tol`, or the budget is spent."""
        return self.crew.through_losses(self._attempt, lambda: len(self.rows))

    def _attempt(self) -> Outcome:
        model = self.crew.model
        self.bound, self.prices = -np.inf, np.zeros(model.num_rows)
        self.asked = self.prices  # multipliers of the bound
        self.proof = Oracle(self.crew, COLUMN_ACCURACY * self.tol * model.fine_scales)
        self.learner = ShardedLearner(self.crew)
        found, status = None, self.budget.spent(0)
        with contextlib.suppress(Stopped), until(self.budget.exhausted):
            state = self._begun()
            status = status or self.budget.spent(len(self.rows))
            for iterate in primal_dual(self.learner, self.rule, state, len(self.rows)) if status is None else ():
                self._record(iterate)
                found = self._try(iterate)
                if found is not None:
                    status = Status.OPTIMAL if found.infeasibility is None else Status.INFEASIBLE
                status = status or self.budget.spent(len(self.rows))
                if found is None:
                    self.crew.each("take")
                    self._save(iterate.state, status is not None)
                if status is not None:
                    break
        status = status or self.budget.spent(len(self.rows)) or Status.INTERRUPTED
        if found is None:
            found = self._last_word()
            status = Status.OPTIMAL if found.optimal(self.tol) else status
        history = History(with_averages(model, self.rows))
        return Outcome(status, self.crew.collect([CURRENT], [1.0]), found, history, len(self.rows))

    def _last_word(self) -> Certificate:
        """What can be proved where the run was stopped."""
        if CURRENT not in self._known():
            self.crew.each("begin")
            self.crew.each("take")
        if self.rows and not self.budget.exhausted():
            self._ask(self.prices)
        return self._certificate(LATE if self.budget.exhausted() else PROOF_SHARE * self.tol)

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def _begun(self) -> Any:
        """Start, or continue from the checkpoint; the state of the rule."""
        growth = {"class": type(self.rule).__name__, "growth": self.rule.growth}
        start = None if self.multipliers is None else self.multipliers.tolist()
        identity = {"method": "pmd-pd", "rule": growth, "tol": self.tol, "initial_multipliers": start}
        self.folder = Folder(self.checkpoint, self.crew, identity)
        fresh, found = not self.rows, []
        self.rows.clear()

        def restore(saved: dict[str, Any]) -> None:
            self.learner.restore(saved["learner"])
            self.rows[:] = rows_from_columns(saved["rows"])
            self.bound, self.proof.mixes = float(saved["bound"]), bool(saved["mixes"])
            self.prices, self.asked = (np.array(saved[name], dtype=float) for name in ("prices", "asked"))
            found.append(state_like(self.rule.start(self.learner.look()), saved["rule"]))
            if fresh:  # of a process that is gone
                self.budget.started -= self.rows[-1].time

        if self.folder.load("read_mirror", restore):
            return found[0]
        self.learner.begin()
        state = self.rule.start(self.learner.look())
        return state if self.multipliers is None else with_multipliers(state, self.multipliers)

    def _save(self, state: Any, last: bool) -> None:
        if not (last or self.folder.is_due):
            return
        content = {
            "learner": self.learner.state(),
            "rule": {name: np.asarray(value).tolist() for name, value in fields_of(state).items()},
            "rows": {name: column.tolist() for name, column in rows_as_columns(self.rows).items()},
            "bound": self.bound,
            "mixes": self.proof.mixes,
            "prices": self.prices.tolist(),
            "asked": self.asked.tolist(),
        }
        self.folder.save("write_mirror", len(self.rows), content)

    def _known(self) -> list[str]:
        names: list[str] = self.crew.one(0, "known")
        return names

    def _record(self, iterate: Iterate) -> None:
        row = Row(iterate.objective, iterate.v, iterate.multipliers, iterate.inner_steps, self.budget.elapsed)
        self.rows.append(row)
        self.prices = self._prices(iterate)
        self.budget.tell(snapshot(self.crew.model, row, iterate.k, self.bound))

    # -- proofs ---------------------------------------------------------------------------------------------------

    def _try(self, iterate: Iterate) -> Certificate | None:
        """A certificate of the policy at hand, or that there is none, when that is likely to succeed."""
        model, k = self.crew.model, iterate.k
        arrived = iterate.distance is not None and iterate.distance <= self.tol * model.proof_scale(iterate.objective)
        near = bool((iterate.v <= self.tol * model.fine_scales[1:]).all())
        if near and (arrived or k % CHECK == 0):
            self._ask(self.prices)
            certificate = self._certificate(PROOF_SHARE * self.tol)
            if certificate.optimal(self.tol):
                return certificate
        if not near and k >= REFUTE and k % REFUTE == 0:
            return self._refute(self.prices)
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
            self.bound, self.asked = bound, lam

    def _certificate(self, accuracy: float) -> Certificate:
        model = self.crew.model
        size = model.proof_scale(self.rows[-1].objective if self.rows else 0.0)
        allowed = accuracy * np.append(size, model.fine_scales[1:])
        values, errors = self.proof.prove(CURRENT, allowed)
        return certificate_of_values(model, values, errors, self.asked, self.bound)

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
