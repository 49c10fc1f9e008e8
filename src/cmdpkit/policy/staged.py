"""Policies with one table per stage of a finite horizon, and policies of a lowered model."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from cmdpkit.checks import Array, as_floats, check_count, freeze, refreeze
from cmdpkit.files import PathLike, load_arrays, save_arrays
from cmdpkit.model import CMDP, Pairs
from cmdpkit.policy.mixture import MixturePolicy
from cmdpkit.policy.tabular import TabularPolicy, as_policy, refuse_results
from cmdpkit.tables import Table, policy_html, policy_table

STAGED = "cmdpkit staged policy"


class StagedPolicy:
    """A policy for a finite horizon: one table per stage.

    Args:
        tables: `TabularPolicy` objects over the same pairs, or (S, A) arrays of probabilities, one for each stage.

    Example:
        >>> policy = StagedPolicy([[[1.0, 0.0]], [[0.5, 0.5]]])
        >>> policy
        StagedPolicy(horizon=2, states=1, actions=2)
        >>> policy.at(1).probabilities
        array([[0.5, 0.5]])
    """

    def __init__(self, tables: Any) -> None:
        parts = [table if isinstance(table, TabularPolicy) else TabularPolicy(table) for table in tables]
        if not parts:
            raise ValueError("a staged policy needs a table for at least one stage")
        for t, part in enumerate(parts):
            if not part.pairs.same(parts[0].pairs):
                raise ValueError(f"the table of stage {t} has other states or actions than that of stage 0")
        self.pairs = parts[0].pairs
        self.log_pi: Array = freeze(np.stack([part.log_pi for part in parts]))  # (T, S, A), or (T, N)
        self.pi: Array = freeze(np.stack([part.pi for part in parts]))

    @classmethod
    def over(cls, pairs: Pairs, log_pi: Array, pi: Array) -> StagedPolicy:
        """The policy with these numbers, (T, S, A) or (T, N), which belong together. They are not validated."""
        policy = cls.__new__(cls)
        policy.pairs, policy.log_pi, policy.pi = pairs, freeze(log_pi), freeze(pi)
        return policy

    @property
    def horizon(self) -> int:
        return len(self.log_pi)

    @property
    def states(self) -> int:
        return self.pairs.states

    @property
    def actions(self) -> int:
        return self.pairs.actions

    def at(self, stage: int) -> TabularPolicy:
        """The table of a stage; the first is stage 0."""
        if isinstance(stage, bool) or not isinstance(stage, numbers.Integral) or not 0 <= stage < self.horizon:
            raise ValueError(f"stage {stage!r} is not one of 0 to {self.horizon - 1}")
        return TabularPolicy._exactly(self.pairs, self.log_pi[stage], self.pi[stage])

    @property
    def probabilities(self) -> Array:
        """(T, S, A), 0 where an action is not available."""
        return np.stack([self.at(t).probabilities for t in range(self.horizon)])

    def table(self, limit: int | None = None) -> Table:
        """Stage, state, action and probability of every action that may be played.

        Args:
            limit: number of rows; all by default.
        """
        if limit is not None:
            check_count(limit, "limit", least=1)
        columns: dict[str, list[Any]] = {"stage": [], "state": [], "action": [], "probability": []}
        for t in range(self.horizon):
            left = None if limit is None else limit - len(columns["stage"])
            if left == 0:
                break
            part = policy_table(self.at(t), left)
            columns["stage"] += [t] * len(part)
            for name, column in part.columns.items():
                columns[name] += list(column)
        return Table(columns, total=int((self.pi > 0.0).sum()))

    def to_frame(self) -> Any:
        """`table()` as a pandas frame."""
        return self.table().to_frame()

    def to_csv(self, path: PathLike) -> None:
        """Write `table()` to a CSV file, atomically."""
        self.table().to_csv(path)

    def randomised_states(self, threshold: float = 1e-9) -> list[tuple[int, Any]]:
        """(stage, state) wherever more than one action has a probability above `threshold`."""
        return [(t, state) for t in range(self.horizon) for state in self.at(t).randomised_states(threshold)]

    def sample(self, state: int, stage: int, rng: np.random.Generator) -> int:
        """Draw an action for `state` at `stage`."""
        return self.at(stage).sample(state, rng)

    def save(self, path: PathLike) -> None:
        """Write the policy to an `.npz` file, atomically and without pickle."""
        save_arrays(path, STAGED, {"log_probabilities": self.log_pi, **self.pairs.arrays()})

    @classmethod
    def load(cls, path: PathLike) -> StagedPolicy:
        """Read a policy written by `save`."""
        arrays = load_arrays(path, STAGED)
        try:
            return cls.from_arrays(arrays)
        except KeyError as error:
            raise ValueError(f"{path} is damaged: the entry {error} is missing") from error
        except (ValueError, TypeError, IndexError) as error:
            raise ValueError(f"{path} does not hold a valid policy: {error}") from error

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> StagedPolicy:
        """Read what `save` wrote, with validation."""
        tables = as_floats(arrays["log_probabilities"], "log_probabilities")
        if tables.ndim != 3 - ("pair_first" in arrays):
            raise ValueError(f"its tables have shape {tables.shape}, not (stages, states, actions)")
        return cls([TabularPolicy.from_arrays(arrays | {"log_probabilities": table}) for table in tables])

    def __len__(self) -> int:
        return self.horizon

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({name: refreeze(value) for name, value in state.items()})

    def _repr_html_(self) -> str:
        return policy_html(self)

    def __repr__(self) -> str:
        return f"StagedPolicy(horizon={self.horizon}, states={self.states}, actions={self.actions})"


def load_policy(path: PathLike) -> TabularPolicy | MixturePolicy | StagedPolicy:
    """Read a policy, a mixture or a staged policy written by `save`."""
    try:
        return TabularPolicy.load(path)
    except ValueError as error:
        if "cmdpkit mixture" in str(error):
            return MixturePolicy.load(path)
        if STAGED in str(error):
            return StagedPolicy.load(path)
        raise


def lowered_policy(cmdp: CMDP, policy: Any, name: str = "policy") -> Any:
    """The policy of `cmdp.lowering.model` that belongs to a policy of the model.

    For a finite horizon that may be a `StagedPolicy`, a (T, S, A) array, or a policy that is the same at all stages.
    """
    if isinstance(policy, MixturePolicy):
        return MixturePolicy([lowered_policy(cmdp, part, name) for part in policy.policies], policy.weights)
    if cmdp.horizon is None:
        if isinstance(policy, StagedPolicy):
            raise TypeError(f"{name} has a table for each of {policy.horizon} stages, but the model has no horizon")
        return as_policy(policy, cmdp.pairs, name)
    if not isinstance(policy, (StagedPolicy, TabularPolicy)):
        refuse_results(policy)
        table = as_floats(policy, name)
        policy = StagedPolicy(table) if table.ndim == 3 else TabularPolicy(table)
    if isinstance(policy, TabularPolicy):
        tables = [as_policy(policy, cmdp.pairs, name)] * cmdp.horizon
    elif policy.horizon != cmdp.horizon:
        raise ValueError(f"{name} has {policy.horizon} stages, the model has {cmdp.horizon}")
    else:
        tables = [as_policy(policy.at(t), cmdp.pairs, name) for t in range(cmdp.horizon)]
    pairs = cmdp.lowering.model.pairs  # type: ignore[union-attr]
    rest = pairs.count - cmdp.horizon * cmdp.pairs.count
    log_pi = np.concatenate([*(table.log_pi.ravel() for table in tables), np.full(rest, -np.log(rest))])
    return TabularPolicy._exactly(
        pairs, log_pi, np.concatenate([*(table.pi.ravel() for table in tables), np.full(rest, 1.0 / rest)])
    )


def raised_policy(cmdp: CMDP, policy: Any) -> Any:
    """The policy of a model that belongs to one of `cmdp.lowering.model`."""
    if policy is None:
        return None
    if isinstance(policy, MixturePolicy):
        return MixturePolicy([raised_policy(cmdp, part) for part in policy.policies], policy.weights)
    if cmdp.horizon is None:
        return TabularPolicy._exactly(cmdp.pairs, policy.log_pi, policy.pi)
    count, shape = cmdp.horizon * cmdp.pairs.count, (cmdp.horizon, *cmdp.pairs.shape)
    return StagedPolicy.over(
        cmdp.pairs, *(table.ravel()[:count].reshape(shape) for table in (policy.log_pi, policy.pi))
    )
