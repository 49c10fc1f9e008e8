"""Policies over finite states and actions, kept as log-probabilities of the pairs that exist.

Under mirror descent log π(a|s) of a bad action decreases without bound. The logarithm does not underflow; π would. A
policy that is given by its probabilities takes their logarithms when they are asked for.
"""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from cmdpkit.checks import (
    ROW_SUM_TOLERANCE,
    Array,
    PairTable,
    as_floats,
    check_count,
    check_nonnegative,
    freeze,
    refreeze,
)
from cmdpkit.draws import Draws
from cmdpkit.files import PathLike, load_arrays, save_arrays
from cmdpkit.model import Pairs
from cmdpkit.tables import Table, label, policy_html, policy_table

UNHEARD, LEAST = -100.0, -708.0
"""Logarithms of probabilities that change no sum, and of the smallest normal number: exp takes seven times as long
below."""


class TabularPolicy:
    """A stationary randomised policy π(a|s).

    Args:
        probabilities: (S, A) array with rows that sum to one. Rows that are off by up to 1e-8 are normalised.

    Example:
        >>> policy = TabularPolicy([[0.25, 0.75]])
        >>> policy.sample(0, np.random.default_rng(0))
        1
        >>> policy[0]
        {1: 0.75, 0: 0.25}
    """

    _draws: Draws | None = None  # kept by `act`
    _by_log = False  # whether π is computed from log π

    def __init__(self, probabilities: Any) -> None:
        table = check_probabilities(probabilities)
        self._set(Pairs(*table.shape), table)

    def _set(self, pairs: Pairs, table: PairTable) -> None:
        self.pairs = pairs
        self._log_pi: PairTable | None = None
        self._pi: PairTable | None = freeze(normalise(pairs, table))

    @classmethod
    def over(cls, pairs: Pairs, probabilities: PairTable) -> TabularPolicy:
        """The policy with these probabilities of the model's pairs, in their shape. They are not validated."""
        policy = cls.__new__(cls)
        policy._set(pairs, probabilities)
        return policy

    @classmethod
    def from_log(cls, log_weights: Any) -> TabularPolicy:
        """π ∝ exp(log_weights) for an (S, A) array, normalised by log-sum-exp."""
        weights = as_floats(log_weights, "log_weights")
        if weights.ndim != 2 or 0 in weights.shape:
            raise ValueError(f"log_weights have shape {weights.shape}; they need shape (states, actions)")
        bad = np.flatnonzero(~np.isfinite(weights.max(axis=1)))
        if bad.size:
            raise ValueError(f"log_weights of state {bad[0]} are {weights[bad[0]]}; they define no distribution")
        return cls.softmax(Pairs(*weights.shape), weights)

    @classmethod
    def softmax(cls, pairs: Pairs, log_weights: PairTable) -> TabularPolicy:
        """π ∝ exp(log_weights) over the model's pairs, without validation, for inner loops."""
        policy = cls.__new__(cls)
        policy.pairs = pairs
        policy._log_pi = freeze(normalise_log(pairs, log_weights))
        policy._pi = None
        return policy

    @classmethod
    def normalised(cls, pairs: Pairs, log_pi: PairTable) -> TabularPolicy:
        """The policy with just these log-probabilities, whose rows sum to one."""
        policy = cls.__new__(cls)
        policy.pairs, policy._log_pi, policy._pi = pairs, freeze(log_pi), None
        return policy

    @classmethod
    def from_occupancy(cls, pairs: Pairs, occupancy: PairTable, fallback: PairTable) -> TabularPolicy:
        """π(a|s) = d(s, a) / Σ_a d(s, a); what `fallback` says in states that are never visited."""
        occupancy = np.maximum(occupancy, 0.0)  # unvisited pairs may come out of a linear solve as −1e-18
        visits = pairs.over(pairs.sum(occupancy))
        seen = visits > 0.0
        occupancy /= np.where(seen, visits, 1.0)
        np.copyto(occupancy, fallback, where=~seen)
        return cls.over(pairs, occupancy)

    @classmethod
    def evenly(cls, pairs: Pairs) -> TabularPolicy:
        """The uniform policy over the model's pairs. Where all actions are available it takes no memory."""
        if not pairs.is_full:
            return cls.over(pairs, pairs.uniform())
        even = np.full((1, 1), 1.0 / pairs.actions)
        return cls._exactly(pairs, *(np.broadcast_to(table, pairs.shape) for table in (np.log(even), even)))

    @classmethod
    def uniform(cls, states: int, actions: int) -> TabularPolicy:
        if states < 1 or actions < 1:
            raise ValueError(f"states and actions must be at least 1, not {states} and {actions}")
        return cls(np.full((states, actions), 1.0 / actions))

    @classmethod
    def deterministic(cls, choice: Any, actions: int) -> TabularPolicy:
        """The policy that takes action `choice[s]` in state s."""
        chosen = np.asarray(choice)
        if chosen.dtype.kind not in "iu" or chosen.ndim != 1:
            raise TypeError(f"choice must be a list of whole numbers, one per state, not {chosen.dtype} {choice!r}")
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < actions:
            raise ValueError(f"every choice must be one of the actions 0 to {actions - 1}, got {choice!r}")
        return cls(np.eye(actions)[chosen])

    @property
    def pi(self) -> PairTable:
        """π(a|s) of the pairs that exist."""
        if self._pi is None:
            self._pi, self._by_log = freeze(_exp(self.log_pi)), True
        return self._pi

    def release(self) -> None:
        """Give up π(a|s) where it was computed from log π(a|s): a table of a large model that is quickly made again."""
        if self._by_log:
            self._pi = None

    @property
    def log_pi(self) -> PairTable:
        """log π(a|s) of the pairs that exist, −∞ for actions that are never played."""
        if self._log_pi is None:
            none = np.full(self.pi.shape, -np.inf)
            self._log_pi = freeze(np.log(self.pi, out=none, where=self.pi > 0.0))
        return self._log_pi

    @property
    def probabilities(self) -> Array:
        """π(a|s) as an (S, A) array, 0 where an action is not available."""
        return freeze(self.pairs.table(self.pi, 0.0))

    @property
    def log_probabilities(self) -> Array:
        """log π(a|s) as an (S, A) array, −∞ where an action is not available."""
        return freeze(self.pairs.table(self.log_pi, -np.inf))

    @property
    def states(self) -> int:
        return self.pairs.states

    @property
    def actions(self) -> int:
        return self.pairs.actions

    def sample(self, state: int, rng: np.random.Generator) -> int:
        """Draw an action for `state`."""
        if not isinstance(state, numbers.Integral) or not 0 <= state < self.states:
            raise ValueError(f"state {state!r} is not one of 0 to {self.states - 1}")
        row = self.probabilities[state] if self.pairs.is_full else self._own_actions(int(state))
        cumulative = np.cumsum(row)
        return int(
            min(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"), np.flatnonzero(row)[-1])
        )

    def _own_actions(self, state: int) -> Array:
        """(A,) π(·|s), without the rest of the table."""
        pairs = slice(*self.pairs.first[state : state + 2])
        row = np.zeros(self.actions)
        row[self.pairs.action[pairs]] = self.pi[pairs]
        return row

    def act(self, states: Any, rng: np.random.Generator) -> Any:
        """Draw an action for every one of many states, or for a single one.

        Args:
            states: numbers of states, in an array of any shape; or, if the model has labels, a label or a list of
                labels. Where labels are whole numbers themselves, numbers are labels.
            rng: a NumPy random generator.

        Returns:
            numbers of actions in the same shape; or the labels of actions for the labels of states.
        """
        if self._draws is None:
            self._draws = Draws(self.pairs, self.pi)
        return self._draws.act(states, rng)

    # -- tables for people --------------------------------------------------------------------------------------

    def __getitem__(self, state: Any) -> dict[Any, float]:
        """What is played in a state: {action: probability}, the most probable first; by label, or number without."""
        pairs = self.pairs
        own = slice(*pairs.first[(number := pairs.state_index(state)) : number + 2])
        pi, actions = self.pi.reshape(-1)[own], pairs.action[own]
        order = [a for a in np.argsort(-pi, kind="stable") if pi[a] > 0.0]
        return {label(pairs.action_labels, actions[a]): float(pi[a]) for a in order}

    __iter__ = None  # a policy is not a sequence

    def table(self, limit: int | None = None) -> Table:
        """State, action and probability of every action that may be played, the most probable first in each state.

        Args:
            limit: number of rows; all by default.
        """
        if limit is not None:
            check_count(limit, "limit", least=1)
        return policy_table(self, limit)

    def to_frame(self) -> Any:
        """`table()` as a pandas frame."""
        return self.table().to_frame()

    def to_csv(self, path: PathLike) -> None:
        """Write `table()` to a CSV file, atomically."""
        self.table().to_csv(path)

    def randomised_states(self, threshold: float = 1e-9, occupancy: Any = None) -> list[Any]:
        """The states in which more than one action has a probability above `threshold`: labels, or numbers without.

        Args:
            threshold: probability that counts as zero.
            occupancy: (S, A) or (S,) visits, as in `cmdpkit.evaluate(cmdp, policy).occupancy`; states that are never
                visited are then left out.
        """
        check_nonnegative(threshold, "threshold")
        pairs = self.pairs
        chosen = pairs.sum((self.pi > threshold).astype(np.int32)) > 1
        if occupancy is not None:
            visits = as_floats(occupancy, "occupancy")
            if visits.shape not in ((self.states,), (self.states, self.actions)):
                raise ValueError(f"occupancy has shape {visits.shape}; it needs {(self.states, self.actions)}")
            chosen &= visits.reshape(self.states, -1).sum(axis=1) > 0.0
        return [label(pairs.state_labels, state) for state in np.flatnonzero(chosen).tolist()]

    def _repr_html_(self) -> str:
        return policy_html(self)

    # -- files --------------------------------------------------------------------------------------------------

    def save(self, path: PathLike) -> None:
        """Write the policy to an `.npz` file, atomically and without pickle."""
        save_arrays(path, "cmdpkit policy", self.arrays())

    @classmethod
    def load(cls, path: PathLike) -> TabularPolicy:
        """Read a policy written by `save`."""
        arrays = load_arrays(path, "cmdpkit policy")
        try:
            return cls.from_arrays(arrays)
        except KeyError as error:
            raise ValueError(f"{path} is damaged: the entry {error} is missing") from error
        except (ValueError, TypeError, IndexError) as error:
            raise ValueError(f"{path} does not hold a valid policy: {error}") from error

    def arrays(self) -> dict[str, Any]:
        """The policy and its pairs, for files."""
        return {"log_probabilities": self.log_pi, **self.pairs.arrays()}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> TabularPolicy:
        """Read what `arrays` wrote, with validation."""
        table = as_floats(arrays["log_probabilities"], "log_probabilities")
        if "pair_first" in arrays:
            pairs = Pairs.from_arrays(arrays, np.asarray(arrays["pair_first"]).size - 1, 1)
        elif table.ndim == 2 and table.size:
            pairs = Pairs.from_arrays(arrays, *table.shape)
        else:
            raise ValueError(f"its log-probabilities have shape {table.shape}; they need shape (states, actions)")
        if table.shape != pairs.shape:
            raise ValueError(f"it has {table.size} log-probabilities for {pairs.count} pairs of state and action")
        with np.errstate(over="ignore"):  # infinite probabilities are rejected by the next line
            _check_distributions(pairs, np.exp(table))
        return cls.stored(pairs, table)

    @classmethod
    def stored(cls, pairs: Pairs, log_pi: Any) -> TabularPolicy:
        """The policy with these log-probabilities, bit for bit if its rows already sum to one."""
        table = np.array(log_pi, dtype=np.float64).reshape(pairs.shape)
        total = pairs.sum(np.exp(table))
        policy = cls.__new__(cls)
        policy.pairs = pairs
        policy._log_pi = freeze(table if _is_one(total) else table - pairs.over(np.log(total)))
        policy._pi = None
        return policy

    @classmethod
    def _exactly(cls, pairs: Pairs, log_pi: Array, pi: Array) -> TabularPolicy:
        """The policy with just these numbers, which belong together."""
        policy = cls.__new__(cls)
        policy.pairs = pairs
        policy._log_pi, policy._pi = freeze(log_pi.reshape(pairs.shape)), freeze(pi.reshape(pairs.shape))
        return policy

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({name: refreeze(value) for name, value in state.items()})

    def __repr__(self) -> str:
        return f"TabularPolicy(states={self.states}, actions={self.actions})"


def normalise(pairs: Pairs, table: PairTable) -> PairTable:
    """Normalise the rows to sum to one; a table whose rows already do is returned unchanged."""
    total = pairs.sum(table)
    return table if _is_one(total) else table / pairs.over(total)


def _is_one(total: Array) -> bool:
    return bool(np.abs(total - 1.0).max() <= 8.0 * np.finfo(float).eps)


def normalise_log(pairs: Pairs, log_weights: PairTable) -> PairTable:
    """log π = w − log Σ_a exp w, state by state."""
    shifted: PairTable = log_weights - pairs.over(pairs.max(log_weights))
    weights = np.maximum(shifted, UNHEARD)
    shifted -= pairs.over(np.log(pairs.sum(np.exp(weights, out=weights))))
    return shifted


def _exp(table: PairTable) -> PairTable:
    """exp, with 0 in place of numbers that are not normal."""
    if table.min() >= LEAST:
        return np.exp(table)
    found: PairTable = np.maximum(table, LEAST)
    np.exp(found, out=found)
    found *= table >= LEAST
    return found


def refuse_results(policy: Any) -> None:
    if hasattr(policy, "policy"):
        kind = type(policy).__name__
        raise TypeError(f"a policy or a table of probabilities is needed, not a {kind}; pass its .policy")


def check_probabilities(probabilities: Any) -> PairTable:
    refuse_results(probabilities)
    if hasattr(probabilities, "horizon"):
        stages = probabilities.horizon
        raise TypeError(f"the policy has a table for each of {stages} stages; one for all steps is needed here")
    table = as_floats(probabilities, "a policy's probabilities")
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(f"a policy's probabilities have shape {table.shape}; they need shape (states, actions)")
    _check_distributions(Pairs(*table.shape), table)
    return table


def _check_distributions(pairs: Pairs, table: PairTable) -> None:
    bad = ~np.isfinite(table) | (table < 0.0)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"the policy's probability of {pairs.pair_name(row)} is {table.flat[row]}")
    sums = pairs.sum(table)
    worst = int(np.abs(sums - 1.0).argmax())
    if abs(sums[worst] - 1.0) > ROW_SUM_TOLERANCE:
        raise ValueError(
            f"the policy's probabilities in state {pairs.state_name(worst)} sum to {sums[worst]:.12g}, not 1"
        )


def as_policy(policy: Any, pairs: Pairs, name: str = "policy") -> TabularPolicy:
    """Convert a policy or an (S, A) array of probabilities to a `TabularPolicy` over the pairs of a model."""
    checked: TabularPolicy = policy if isinstance(policy, TabularPolicy) else TabularPolicy(policy)
    if (checked.states, checked.actions) != (pairs.states, pairs.actions):
        raise ValueError(
            f"{name} is for {checked.states} states and {checked.actions} actions, the model has {pairs.states} and "
            f"{pairs.actions}"
        )
    if checked.pairs.same(pairs):
        return checked
    table = checked.probabilities
    forbidden = np.argwhere((table > 0.0) & ~pairs.mask)
    if forbidden.size:
        s, a = forbidden[0]
        raise ValueError(
            f"{name} takes action {pairs.action_name(a)} in state {pairs.state_name(s)} with probability "
            f"{table[s, a]}, but it is not available there ({len(forbidden)} such pairs)"
        )
    return TabularPolicy.stored(pairs, pairs.taken(checked.log_probabilities))
