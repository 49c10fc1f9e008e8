"""Solving sharded models: the run of the column search, and the certified result."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cmdpkit.certificates.certificate import Certificate
from cmdpkit.certificates.checker import certificate_of_values, mixed_values, refuted
from cmdpkit.checks import Array
from cmdpkit.evaluation.patience import Stopped, until
from cmdpkit.policy import ShardedPolicy
from cmdpkit.run.budget import Budget, Snapshot
from cmdpkit.run.history import History
from cmdpkit.run.outcome import Outcome
from cmdpkit.run.status import Status
from cmdpkit.sharded.crew import Crew
from cmdpkit.sharded.folder import Folder
from cmdpkit.sharded.search import ColumnSearch

HISTORY = ("objective", "violation", "bound", "multipliers", "time")

PROOF_SHARE, VISIT_SHARE = 0.02, 0.003
"""Values are proved to this part of `tol`, and visits found to that."""

LATE = 1e-3
"""When time is up, the values of the policy are proved to this relative accuracy only."""


@dataclass
class Columns:
    """A run of the column search, from which it recovers when workers are lost.

    Without a checkpoint a run that has lost blocks starts again; with one it continues after the last question. Either
    way it ends with the same numbers, as every number follows from those before.
    """

    crew: Crew
    tol: float
    budget: Budget
    checkpoint: Path | None = None
    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def solve(self) -> Outcome:
        """Run to the end."""
        return self.crew.through_losses(self._attempt, lambda: len(self.rows))

    def _attempt(self) -> Outcome:
        search = ColumnSearch(self.crew, self.tol)
        self.folder = Folder(self.checkpoint, self.crew, {"method": "columns", "tol": self.tol})
        resumed = self._continue(search)
        status, answer = self.budget.spent(0), None
        with contextlib.suppress(Stopped), until(self.budget.exhausted):
            while status is None:
                if not (search.stuck or resumed):  # a checkpoint is written after a question, and before its judgement
                    search.step()
                    self._record(search)
                resumed = False
                if search.farkas is not None:
                    status = Status.INFEASIBLE
                elif search.stuck or search.close_enough:
                    answer = self._answer(search, PROOF_SHARE * self.tol)
                    if answer[1].optimal(self.tol):
                        status = Status.OPTIMAL
                    elif search.stuck:
                        status = Status.NUMERICAL_ERROR
                status = status or self.budget.spent(search.calls)
        if status is None:
            status = self.budget.spent(search.calls) or Status.INTERRUPTED
        if answer is None or status not in (Status.OPTIMAL, Status.NUMERICAL_ERROR):
            answer = self._answer(search, PROOF_SHARE * self.tol if status is Status.INFEASIBLE else LATE)
        return Outcome(status, *answer, _history(self.rows), search.calls)

    # -- the answer -----------------------------------------------------------------------------------------------

    def _answer(self, search: ColumnSearch, accuracy: float) -> tuple[ShardedPolicy, Certificate]:
        """The stationary policy of the mixture, or if that proves less, the mixture itself."""
        crew, oracle = self.crew, search.oracle
        allowed = accuracy * np.append(self._size(search), search.model.fine_scales[1:])
        if not search.values:
            crew.each("spread", "policy")
            proved = oracle.prove("policy", allowed)
            return self._collected(["policy"], [1.0]), self._certificate(search, *proved)
        weights = search.weights()
        used = np.flatnonzero(weights > 0.0)
        names, shares = [search.names[j] for j in used], weights[used]
        if used.size > 1:
            for i, (name, share) in enumerate(zip(names, shares, strict=True)):
                oracle.visits(name, VISIT_SHARE * self.tol if accuracy < LATE else LATE)
                crew.each("occupy", float(share), name, i == 0)
            crew.each("blend", "policy")
            certificate = self._certificate(search, *oracle.prove("policy", allowed))
            if certificate.optimal(self.tol) or accuracy >= LATE or search.farkas is not None:
                return self._collected(["policy"], [1.0]), certificate
        parts = [oracle.prove(name, allowed) for name in names]
        values, errors = (np.array(column) for column in zip(*parts, strict=True))
        return self._collected(names, shares), self._certificate(search, *mixed_values(shares, values, errors))

    def _size(self, search: ColumnSearch) -> float:
        """What the accuracy of the objective is relative to."""
        known = [abs(x) for x in (search.bound, search.upper) if np.isfinite(x)]
        return max(float(search.model.fine_scales[0]), min(known, default=0.0))

    def _certificate(self, search: ColumnSearch, values: Array, errors: Array) -> Certificate:
        model = search.model
        if search.farkas is None:
            return certificate_of_values(model, values, errors, search.multipliers, search.bound)
        plain = certificate_of_values(model, values, errors, np.zeros(model.num_rows), np.inf)
        return refuted(model, plain, search.farkas, search.farkas_margin)

    def _collected(self, names: list[str], shares: Any) -> ShardedPolicy:
        return self.crew.collect(names, list(shares))

    # -- the record -----------------------------------------------------------------------------------------------

    def _record(self, search: ColumnSearch) -> None:
        model, found = search.model, np.isfinite(search.upper)
        excess = float((search.relaxation * search.scales[1:] / model.tolerance_scales).max(initial=0.0))
        news = Snapshot(
            iteration=search.calls,
            objective=float(model.user_objective(search.upper)),
            violation=excess if found else np.inf,
            bound=float(model.user_objective(search.bound)),
            multipliers=model.stated_prices(search.multipliers).copy(),
            time=self.budget.elapsed,
        )
        self.rows.append(tuple(np.copy(getattr(news, name)) for name in HISTORY))
        plain = [[np.asarray(entry).tolist() for entry in row] for row in self.rows] if self.checkpoint else []
        self.folder.save("write", search.calls, {"search": search.state(), "rows": plain}, search.names)
        self.budget.tell(news)

    def _continue(self, search: ColumnSearch) -> bool:
        """Continue from the checkpoint, if there is one."""
        fresh = not self.rows
        self.rows.clear()

        def restore(saved: dict[str, Any]) -> None:
            search.restore(saved["search"])
            self.rows[:] = [tuple(np.array(entry) for entry in row) for row in saved["rows"]]
            if fresh:  # of a process that is gone
                self.budget.started -= float(self.rows[-1][HISTORY.index("time")])

        return self.folder.load("read", restore)


def _history(rows: list[tuple[Any, ...]]) -> History:
    columns = zip(*rows, strict=True) if rows else ((),) * len(HISTORY)
    return History(dict(zip(HISTORY, columns, strict=True)))
