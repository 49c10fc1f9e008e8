"""The driver: runs the loop for every learner, and calls observers.

An observer is called after every macro step and ends the run by returning a status, as the prover does when it has a
proof. The callback and the progress display are observers too. The driver itself keeps the record and the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.patience import Stopped, until
from cmdpkit.primal_dual import Iterate, Learner, primal_dual
from cmdpkit.rules.base import Rule, Weights, with_multipliers
from cmdpkit.rules.checked import checked
from cmdpkit.run.budget import Budget
from cmdpkit.run.checkpoint import Checkpoint
from cmdpkit.run.recorder import Recorder, rows_as_columns, rows_from_columns
from cmdpkit.run.status import Status

Observer = Callable[[Iterate], Status | None]

RULE, RECORD, LEARNER, OBSERVER = "rule_", "record_", "learner_", "observer_"
"""Prefixes of the entries of a checkpoint, by their owner."""


@dataclass
class Run:
    """A learner, a rule, a record and a budget; `go` runs until the budget is spent or an observer ends the run.

    Args:
        learner, rule: arguments of the loop.
        recorder: records the iterates.
        budget: limits of the run.
        observers: called after every macro step, in this order.
        multipliers: initial multipliers, instead of the rule's own.
        store: checkpoint of the run; if it holds a state, the run continues from it.
    """

    learner: Learner
    rule: Rule
    recorder: Recorder
    budget: Budget
    observers: Sequence[Observer] = ()
    multipliers: Array | None = None
    store: Checkpoint | None = None

    def __post_init__(self) -> None:
        self.rule = checked(self.rule)
        self.steps = 0  # macro steps made
        self._state: Any = None  # of the rule, after the last macro step
        self._saved: dict[str, Any] = {}  # fields of the rule's state in a checkpoint
        self._mark: dict[str, Any] = {}  # the learner after the last macro step
        self._observers_before: list[dict[str, Any]] = []  # states of the observers before the last iterate
        saved = None if self.store is None else self.store.load()
        if saved is not None:
            assert self.store is not None
            try:
                self._restore(saved)
            except KeyError as error:
                raise ValueError(f"{self.store.path} is damaged: the entry {error} is missing") from error

    @property
    def iterations(self) -> int:
        """Rows of the record: macro steps, or policy iterations of the neural learner."""
        return len(self.recorder.rows)

    def go(self) -> Status:
        """Run to the end. If the learner fails, the checkpoint has the end of the last macro step."""
        self._mark_learner()
        status = self._look_again() or self.budget.spent(self.iterations)
        iterates = self._iterates()
        while status is None:
            try:
                with until(self.budget.exhausted):
                    status = self._after(next(iterates))
            except Stopped as stop:
                over = self.budget.spent(self.iterations) or Status.INTERRUPTED
                status = Status.SAMPLE_LIMIT if stop.out_of_budget else over
            except Exception:  # an environment or a simulator failed: keep what was learned until then
                if self.store is not None:
                    self.learner.restore(self._mark)
                    self._save()
                raise
        self._save()
        return status

    def _mark_learner(self) -> None:
        """Keep what a checkpoint needs; without one no old table is kept."""
        self._mark = {} if self.store is None else self.learner.state()

    def _iterates(self) -> Iterator[Iterate]:
        if self._state is None and self.multipliers is not None:
            self._state = with_multipliers(self.rule.start(self.learner.look()), self.multipliers)
        yield from primal_dual(self.learner, self.rule, self._state, self.steps)

    def _after(self, iterate: Iterate) -> Status | None:
        self._state, self.steps = iterate.state, iterate.k
        self._mark_learner()
        self.recorder.add(iterate, self.budget.elapsed)
        self._observers_before = [observer.state() for observer in self._stateful()] if self.store else []
        verdicts = [observer(iterate) for observer in self.observers]
        if self.store is not None:
            self.store.save_when_due(self._content)
        found = next((verdict for verdict in verdicts if verdict is not None), None)
        return found or self.budget.spent(self.iterations)

    def _look_again(self) -> Status | None:
        """After a restart, call observers with a state on the last iterate again; they may end the run."""
        if not self._saved:
            return None
        self._state = state_like(self.rule.start(self.learner.look()), self._saved)
        row = self.recorder.rows[-1]
        distance = getattr(self._state, "distance", None)
        weights = Weights(1.0, row.multipliers)  # the weights of the step itself are in the record
        numbers = (self.steps, row.objective, row.v, row.multipliers, weights, row.inner_steps)
        iterate = Iterate(*numbers, self._state, distance)
        verdicts = [observer(iterate) for observer in self._stateful()]
        return next((verdict for verdict in verdicts if verdict is not None), None)

    def _stateful(self) -> list[Any]:
        """Observers with a state."""
        return [observer for observer in self.observers if hasattr(observer, "state")]

    def _save(self) -> None:
        if self.store is not None:
            self.store.save(self._content)

    def _content(self) -> dict[str, Any]:
        """The complete state of the run after a macro step; empty before the first."""
        if not self.recorder.rows or self._state is None:
            return {}
        return {
            "steps": self.steps,
            **rows_as_columns(self.recorder.rows),
            **{f"{RULE}{name}": value for name, value in fields_of(self._state).items()},
            **{f"{RECORD}{name}": value for name, value in self.recorder.state().items()},
            **{f"{LEARNER}{name}": value for name, value in self._mark.items()},
            **{
                f"{OBSERVER}{i}_{name}": value
                for i, state in enumerate(self._observers_before)
                for name, value in state.items()
            },
        }

    def _restore(self, saved: dict[str, Any]) -> None:
        self.steps = int(saved["steps"])
        self.learner.restore(_part(saved, LEARNER))
        self.recorder.rows[:] = rows_from_columns(saved)
        self.recorder.restore(_part(saved, RECORD))
        for i, observer in enumerate(self._stateful()):
            self._observers_before.append(_part(saved, f"{OBSERVER}{i}_"))
            observer.restore(self._observers_before[-1])
        self._saved = _part(saved, RULE)
        if "multipliers" not in self._saved:
            raise KeyError(f"{RULE}multipliers")
        self.budget.started -= self.recorder.rows[-1].time


def _part(saved: dict[str, Any], owner: str) -> dict[str, Any]:
    return {name.removeprefix(owner): value for name, value in saved.items() if name.startswith(owner)}


def fields_of(state: Any) -> dict[str, Any]:
    """The state of a rule, a NamedTuple or a dataclass, as a dict."""
    if is_dataclass(state) and not isinstance(state, type):
        return {f.name: getattr(state, f.name) for f in fields(state)}
    return dict(state._asdict())


def state_like(start: Any, saved: dict[str, Any]) -> Any:
    """A state of the same type as `start`, with the saved values in the types that `start` has."""
    values = {}
    for name, example in fields_of(start).items():
        if name not in saved:
            raise ValueError(f"the checkpoint is damaged: the entry 'rule_{name}' is missing")
        value = saved[name]
        values[name] = np.asarray(value) if isinstance(example, np.ndarray) else type(example)(value)
    return type(start)(**values)
