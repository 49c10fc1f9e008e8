"""The exact model of a Gymnasium environment that lists its transitions in `env.unwrapped.P`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from cmdpkit.checks import StateArray
from cmdpkit.model.exploration import OBJECTIVE
from cmdpkit.model.functions import named_costs
from cmdpkit.model.listing import Listing, assemble
from cmdpkit.model.references import initial_distribution, suggestion

if TYPE_CHECKING:
    from cmdpkit.model.cmdp import CMDP

Cost = Callable[[int, int, int, float, bool], float]
Row = tuple[int, int, int, float, float, bool]
"""State, action, next state, probability, reward, and whether the episode ends."""


def from_gymnasium(
    cls: type[CMDP],
    env: Any,
    options: Mapping[str, Any],
    *,
    cost: Cost | Mapping[str, Cost] | None,
    initial: Any,
) -> CMDP:
    """See `CMDP.from_gymnasium`."""
    env = _made(env)
    bare = env.unwrapped
    sizes = [getattr(space, "n", None) for space in (env.observation_space, env.action_space)]
    if not hasattr(bare, "P") or None in sizes:
        raise ValueError(
            f"{env} has no table env.unwrapped.P of its transitions between discrete states; learn from it with "
            "cmdpkit.train, or log transitions and estimate a model with CMDP.from_samples"
        )
    limits, names = named_costs(options["constraints"])
    functions = _cost_functions(cost, names)
    states, actions = (int(size) for size in sizes if size is not None)
    start = getattr(bare, "initial_state_distrib", None) if initial is None else initial
    if start is None:
        raise ValueError(f"{env} does not say where it starts (env.unwrapped.initial_state_distrib); pass initial=")
    distribution = initial_distribution(start, states, None)
    rows = list(_rows(bare.P, states))
    ends, doubtful = _ends(rows, distribution)
    listing = _listing(rows, states, actions, ends, doubtful, functions)
    parts = assemble(listing, merge=True, remedy="correct env.unwrapped.P")
    distribution = np.append(distribution, np.zeros(parts.states - states))
    return cls(**parts.arguments(OBJECTIVE, True, distribution, {**options, "constraints": limits}))


def _made(env: Any) -> Any:
    """The environment, made by Gymnasium if only its name is given."""
    if isinstance(env, str):
        import gymnasium

        try:
            return gymnasium.make(env)
        except (gymnasium.error.Error, ImportError) as error:
            raise ValueError(f"Gymnasium cannot make {env!r}: {error}") from error
    if not hasattr(env, "unwrapped"):
        raise TypeError(f"env must be a Gymnasium environment or the name of one, not {env!r}")
    return env


def _cost_functions(cost: Any, names: list[str]) -> dict[str, Cost]:
    """A function for each quantity that the limits name."""
    if callable(cost) and len(names) == 1:
        return {names[0]: cost}
    given = {} if cost is None and not names else cost
    if not isinstance(given, Mapping):
        raise ValueError(
            f"cost must tell the costs that the {len(names)} limits bound: a function of (state, action, next state, "
            "reward, terminated) for one limit, or a dict of such functions by name"
        )
    for name in names:
        if name not in given:
            raise ValueError(f"a limit refers to the cost {name!r}; {suggestion(name, list(given), 'costs')}")
    return {name: given[name] for name in names}


def _rows(table: Any, states: int) -> Iterator[Row]:
    for s in range(states):
        moves = table[s]
        for a, outcomes in moves.items() if isinstance(moves, Mapping) else enumerate(moves):
            for probability, following, reward, done in outcomes:
                yield s, int(a), int(following), float(probability), float(reward), bool(done)


def _ends(rows: list[Row], initial: StateArray) -> tuple[set[int], set[int]]:
    """The states that are only entered when an episode ends, and those that are also entered when it goes on.

    Only episodes from the initial states count: in Taxi, others pass through the states in which these end.
    """
    ends = {row[2] for row in rows if row[5]}
    successors: dict[int, set[int]] = {}
    for s, _, following, _, _, done in rows:
        if not done:
            successors.setdefault(s, set()).add(following)
    entered: set[int] = set()
    waiting = set(np.flatnonzero(initial).tolist())
    while waiting:
        entered |= waiting
        waiting = set().union(*(successors.get(s, set()) for s in waiting)) - entered
    return ends - entered, ends & entered


def _listing(
    rows: list[Row], states: int, actions: int, ends: set[int], doubtful: set[int], functions: Mapping[str, Cost]
) -> Listing:
    """The transitions of the states in which an episode goes on; the others keep the state at no reward or cost.

    An episode that ends in a doubtful state, which others pass through, ends in an additional state instead.
    """
    going_on = [row for row in rows if row[0] not in ends]
    stays = [*sorted(ends), *([states] if doubtful else [])]
    following = [states if done and n in doubtful else n for _, _, n, _, _, done in going_on]
    loops = np.repeat(np.array(stays, dtype=np.int64), actions)

    def column(values: Iterable[float], added: float) -> Any:
        return np.append(np.array(list(values), dtype=float), np.full(loops.size, added))

    quantities = {OBJECTIVE: column((row[4] for row in going_on), 0.0)}
    for name, function in functions.items():
        values = (float(function(s, a, n, reward, done)) for s, a, n, _, reward, done in going_on)
        quantities[name] = column(values, 0.0)
    return Listing(
        np.append(np.array([row[0] for row in going_on], dtype=np.int64), loops),
        np.append(np.array([row[1] for row in going_on], dtype=np.int64), np.tile(np.arange(actions), len(stays))),
        np.append(np.array(following, dtype=np.int64), loops),
        column((row[3] for row in going_on), 1.0),
        quantities,
        states + bool(doubtful),
        actions,
        (*range(states), "end") if doubtful else None,
    )
