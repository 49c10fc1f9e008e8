"""Where a run starts that has an earlier result: its policies, its multipliers, and the columns it found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.exact.columns import ColumnSearch
from cmdpkit.exact.memory import Memory, recall
from cmdpkit.model import CMDP, Problem
from cmdpkit.policy import TabularPolicy, lowered_policy
from cmdpkit.run.result import Result

EXPLORE = 0.01
"""Mirror descent starts from the earlier policy mixed with this part of the uniform one: it never leaves a zero."""


@dataclass(frozen=True, eq=False)
class Start:
    """An earlier result, as far as it can be used for another model of the same size."""

    policies: tuple[TabularPolicy, ...]  # the policy to use first, then others
    last: TabularPolicy  # where a first-order method continues
    multipliers: Array | None  # (m,) by the names of the limits; None where units differ
    memory: Memory | None = None

    def give(self, search: ColumnSearch) -> Array | None:
        """Give a column search what is known; returns the multipliers to ask first."""
        if self.memory is not None:
            recall(search, self.memory)
        if not search.columns:
            for policy in self.policies:
                search.evaluate(policy)
        return None if self.multipliers is None else np.asarray(search.cmdp.row_prices(self.multipliers))

    def without_units(self) -> Start:
        """For a model in other units: the multipliers mean nothing there."""
        return replace(self, multipliers=None)

    def options(self, multipliers: bool) -> dict[str, Any]:
        """The options of a first-order method that starts here."""
        pairs = self.last.pairs
        mixed = (1.0 - EXPLORE) * self.last.pi + EXPLORE * pairs.uniform()
        prices = {"initial_multipliers": self.multipliers} if multipliers and self.multipliers is not None else {}
        return {"initial_policy": TabularPolicy.over(pairs, mixed), **prices}


def start_from(result: Any, problem: Problem) -> Start:
    """Check that a result can be the start of a run on this model."""
    if not isinstance(result, Result):
        raise TypeError(f"start must be a result of cmdpkit.solve, not {type(result).__name__}")
    old = result.model
    if (old.states, old.actions) != (problem.states, problem.actions):
        raise ValueError(
            f"start is the result of a model with {old.states} states and {old.actions} actions; this one has "
            f"{problem.states} and {problem.actions}. Only a model of the same size can start from it"
        )
    if old.horizon != problem.horizon:
        raise ValueError("start is the result of a model with another horizon; it cannot start this one")
    policies = (result.policy, result.last_policy, result.average_policy)
    tables = tuple(policy for policy in policies if isinstance(policy, TabularPolicy))
    pairs = getattr(problem, "pairs", None)
    if pairs is not None and not tables[0].pairs.same(pairs):
        raise ValueError("start is the result of a model with other available actions; it cannot start this one")
    last = result.last_policy if isinstance(result.last_policy, TabularPolicy) else tables[0]
    return Start(tables, last, _multipliers(result, problem), result.memory)


def lowered_start(result: Any, cmdp: CMDP) -> Result:
    """A result of a model with another criterion, as one of the discounted model with the same values."""
    if not isinstance(result, Result) or (result.model.states, result.model.actions) != (cmdp.states, cmdp.actions):
        start_from(result, cmdp)  # refuses
    old, inner = result.model, cmdp.lowering.model  # type: ignore[union-attr]
    if old.horizon != cmdp.horizon:
        raise ValueError("start is the result of a model with another horizon; it cannot start this one")
    names = ("policy", "last_policy", "average_policy")
    known = [(name, getattr(result, name)) for name in names]
    policies = {name: lowered_policy(cmdp, policy, "start") for name, policy in known if policy is not None}
    sizes = {"states": inner.states, "actions": inner.actions, "gamma": inner.gamma, "maximise": old.maximise}
    lowered: Result = replace(result, model=Problem.described(**sizes, constraints=old.constraints), **policies)
    return lowered


def _multipliers(result: Result, problem: Problem) -> Array:
    """Those of the limits with the same name; zero for new limits."""
    known = dict(zip(result.model.names, result.multipliers.tolist(), strict=True))
    found = np.array([known.get(name, 0.0) for name in problem.names], dtype=float)
    signed = np.array([len(c.sides()) == 2 for c in problem.constraints], dtype=bool)
    return np.where(np.isfinite(found) & (signed | (found >= 0.0)), found, 0.0)
