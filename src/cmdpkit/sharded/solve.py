"""Solving sharded models: the run, what happens when workers are lost, checkpoints, and the certified result."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cmdpkit.certificates.certificate import Certificate
from cmdpkit.certificates.checker import certificate_of_values, mixed_values, refuted
from cmdpkit.checks import Array
from cmdpkit.cluster.faults import BlocksLost
from cmdpkit.evaluation.patience import Stopped, until
from cmdpkit.files import PathLike, write_json
from cmdpkit.run.budget import Budget, Snapshot
from cmdpkit.run.history import History
from cmdpkit.run.status import Status
from cmdpkit.sharded.crew import RESTARTS, Crew
from cmdpkit.sharded.policy import ShardedPolicy
from cmdpkit.sharded.search import ColumnSearch

HISTORY = ("objective", "violation", "bound", "multipliers", "time")

PROOF_SHARE, VISIT_SHARE = 0.02, 0.003
"""Values are proved to this part of `tol`, and visits found to that."""

LATE = 1e-3
"""When time is up, the values of the policy are proved to this relative accuracy only."""

HEAD = "search.json"


@dataclass
class ShardedOutcome:
    """The result of a run on blocks."""

    status: Status
    policy: ShardedPolicy
    certificate: Certificate
    history: History
    iterations: int
    note: str = ""


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

    def __post_init__(self) -> None:
        self._written: list[str] = []  # columns in the checkpoint
        self._last = ""  # name of the values in it

    def solve(self) -> ShardedOutcome:
        """Run to the end."""
        failures, reached, note = 0, 0, ""
        while True:
            try:
                outcome = self._attempt()
                outcome.note = note
                return outcome
            except BlocksLost as loss:
                failures = failures + 1 if len(self.rows) <= reached else 1
                reached = max(reached, len(self.rows))
                if failures > RESTARTS:
                    raise BlocksLost(f"{loss}; given up after {failures} losses in a row", loss.blocks) from loss
                note = f"Blocks were lost during the run and built again (last: {loss.names})."
            self.crew.repair()

    def _attempt(self) -> ShardedOutcome:
        self.rows.clear()
        search = ColumnSearch(self.crew, self.tol)
        status = self.budget.spent(0)
        if self.checkpoint is not None and (self.checkpoint / HEAD).exists():
            self._restore(search)
        answer = None
        with contextlib.suppress(Stopped), until(self.budget.exhausted):
            while status is None:
                if not search.stuck:
                    search.step()
                    self._record(search)
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
        return ShardedOutcome(status, *answer, _history(self.rows), search.calls)

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
        return ShardedPolicy.collect(self.crew, names, list(shares))

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
        if self.checkpoint is not None:
            self._save(search)
        self.budget.tell(news)

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def _save(self, search: ColumnSearch) -> None:
        """The blocks write their slices, each file atomically; then the numbers, which name them."""
        assert self.checkpoint is not None
        folder, name = str(self.checkpoint), f"values-{search.calls:06d}"
        self.crew.each("write", folder, name)
        for column in search.names[len(self._written) :]:
            self.crew.each("write_kept", folder, column)
            self._written.append(column)
        content = {
            "model": search.model.fingerprint,
            "tol": self.tol,
            "name": name,
            "search": search.state(),
            "rows": [[np.asarray(entry).tolist() for entry in row] for row in self.rows],
        }
        write_json(self.checkpoint / HEAD, content)
        if self._last:
            self.crew.each("remove", folder, self._last)
        self._last = name

    def _restore(self, search: ColumnSearch) -> None:
        assert self.checkpoint is not None
        path = self.checkpoint / HEAD
        try:
            saved = json.loads(path.read_text("utf-8"))
            if saved["model"] != search.model.fingerprint or saved["tol"] != self.tol:
                raise ValueError("it belongs to another model or tolerance; use another folder")
            count = len(saved["search"]["values"])
            names = [f"column-{j:04d}" for j in range(count)]
            step = self.crew.submit("read", str(self.checkpoint), saved["name"], names, send=True)
            self.crew.fetch(step)
            self.crew.fetch(self.crew.submit("install", after=step))
            search.restore(saved["search"])
            self.rows[:] = [tuple(np.array(entry) for entry in row) for row in saved["rows"]]
            self._written, self._last = names, str(saved["name"])
        except (KeyError, TypeError, json.JSONDecodeError, ValueError, FileNotFoundError) as error:
            raise ValueError(f"{path} is not a checkpoint that this run can continue from: {error}") from error


def _history(rows: list[tuple[Any, ...]]) -> History:
    columns = zip(*rows, strict=True) if rows else ((),) * len(HISTORY)
    return History(dict(zip(HISTORY, columns, strict=True)))


def check_folder(checkpoint: PathLike | None) -> Path | None:
    """The folder of a checkpoint, which is made if it does not exist."""
    if checkpoint is None:
        return None
    folder = Path(checkpoint)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"the checkpoint of a sharded model is a folder, and {folder} is a file")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()
