"""Families of models. Model `index` of a seed is a function of the two numbers alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

import cmdpkit as ck
from fuzz.chains import CHAINS
from fuzz.tables import LIMITS, NASTY, PLAIN, both_sides, constraint, criterion, place, table

Generator = np.random.Generator

GAMMAS = (0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)
MEDIUM = ("line", "star", "grid", "walk", "cliff", "bridges")


def outline(rng: Generator, chain: str, states: Any = None, actions: Any = None, gamma: Any = None) -> dict[str, Any]:
    """A model without limits: transitions, gamma, initial, objective, and a random policy to place limits by."""
    S = int(rng.integers(1, 13) if rng.random() < 0.4 else rng.integers(1, 6)) if states is None else int(states)
    A = int(rng.integers(1, 6)) if actions is None else int(actions)
    initial = rng.dirichlet(np.ones(S)) * (rng.random(S) < rng.choice([0.5, 1.0]))
    initial = initial / initial.sum() if initial.any() else np.eye(S)[0]
    if chain == "off":
        initial *= 1.0 + 1e-9 * rng.uniform(-1.0, 1.0)
    policy = rng.dirichlet(np.full(A, 0.5), size=S) if rng.random() < 0.7 else np.eye(A)[rng.integers(0, A, size=S)]
    return {
        "transitions": CHAINS[chain](rng, S, A),
        "gamma": float(rng.choice(GAMMAS)) if gamma is None else gamma,
        "initial": initial if rng.random() < 0.8 else int(rng.integers(0, S)),
        "maximise": bool(rng.random() < 0.5),
        "objective": table(rng, (S, A), str(rng.choice(PLAIN))),
        "policy": policy / policy.sum(axis=1, keepdims=True),
    }


def finish(rng: Generator, sketch: dict[str, Any], limits: list[Any]) -> ck.CMDP:
    """The model, dense or sparse."""
    P = sketch["transitions"]
    if rng.random() < 0.4:
        P = sp.csr_array(P.reshape(-1, P.shape[2]))
    kind = "reward" if sketch["maximise"] else "cost"
    return ck.CMDP(
        P,
        action_axis=1,
        constraints=limits,
        initial=sketch["initial"],
        available=sketch.get("available"),
        **criterion(sketch),
        **{kind: sketch["objective"]},
    )


def dressed(rng: Generator, sketch: dict[str, Any], tables: tuple[str, ...], kinds: tuple[str, ...]) -> list[Any]:
    """Up to six limits on tables of these kinds."""
    shape, m = sketch["policy"].shape, int(rng.integers(0, 7) if rng.random() < 0.3 else rng.integers(0, 3))
    shared = str(rng.choice(kinds)) if rng.random() < 0.5 else None  # all limits of one kind, or of any
    return [
        constraint(rng, sketch, table(rng, shape, str(rng.choice(tables))), shared or str(rng.choice(kinds)), f"c{i}")
        for i in range(m)
    ]


def of_chain(chain: str) -> Callable[[Generator], ck.CMDP]:
    """Ordinary costs and all kinds of limits on one kind of chain."""

    def family(rng: Generator) -> ck.CMDP:
        sketch = outline(rng, chain)
        return finish(rng, sketch, dressed(rng, sketch, PLAIN, LIMITS))

    return family


def medium(chain: str) -> Callable[[Generator], ck.CMDP]:
    """20 to 60 states, for the time it takes."""

    def family(rng: Generator) -> ck.CMDP:
        sketch = outline(rng, chain, rng.integers(20, 61), rng.integers(2, 5), rng.choice([0.9, 0.99, 0.999]))
        return finish(rng, sketch, dressed(rng, sketch, PLAIN, ("tight", "near", "attained"))[:3])

    return family


def any_chain(rng: Generator, **sizes: Any) -> dict[str, Any]:
    return outline(rng, str(rng.choice(list(CHAINS))), **sizes)


def scales(rng: Generator) -> ck.CMDP:
    """Costs from 1e-310 to 1e140, constant, or of a span of a few rounding errors."""
    sketch = any_chain(rng)
    shape = sketch["policy"].shape
    sketch["objective"] = table(rng, shape, str(rng.choice(NASTY + PLAIN)))
    return finish(rng, sketch, dressed(rng, sketch, NASTY, LIMITS))


def against(rng: Generator) -> ck.CMDP:
    """One scale against another: 1e100 and 1e-100, 1e8 and 1e-8."""
    sketch = any_chain(rng)
    pair = [("huge", "tiny"), ("large", "small"), ("small", "wide"), ("denormal", "normal")][int(rng.integers(0, 4))]
    sketch["objective"] = table(rng, sketch["policy"].shape, str(rng.choice(pair)))
    return finish(rng, sketch, dressed(rng, sketch, pair, LIMITS))


def ties(rng: Generator) -> ck.CMDP:
    """Whole numbers everywhere, so that many policies are equally good."""
    sketch = outline(rng, str(rng.choice(["deterministic", "line", "grid", "star", "rounded", "identity"])))
    sketch["objective"] = table(rng, sketch["policy"].shape, "coins")
    return finish(rng, sketch, dressed(rng, sketch, ("coins", "constant", "zero"), LIMITS))


def duplicates(rng: Generator) -> ck.CMDP:
    """Every action, every state or every constraint twice."""
    sketch = any_chain(rng, states=rng.integers(1, 6), actions=rng.integers(1, 3))
    which = rng.integers(0, 3)
    if which == 0:
        for name, axis in (("transitions", 1), ("objective", 1), ("policy", 1)):
            sketch[name] = np.repeat(sketch[name], 2, axis=axis)
        sketch["policy"] = sketch["policy"] / 2.0
    elif which == 1:
        P = sketch["transitions"].repeat(2, axis=0)
        sketch |= {name: np.repeat(sketch[name], 2, axis=0) for name in ("objective", "policy")}
        sketch |= {"transitions": P.repeat(2, axis=2) / 2.0, "initial": int(rng.integers(0, len(P)))}
    limits = dressed(rng, sketch, PLAIN, LIMITS)
    if which == 2:
        limits += [
            type(c)(factor * c.values, factor * c.limit, f"{c.name} again", c.per_step)
            for c, factor in zip(limits, rng.choice([1.0, 2.0, 3.0], size=3), strict=False)
        ]
    if which < 2:  # the tables repeat as well
        axis = 1 - int(which)
        limits = [type(c)(_halved(c.values, axis), c.limit, c.name, c.per_step) for c in limits]
    return finish(rng, sketch, limits)


def _halved(values: Any, axis: int) -> Any:
    """Every other column or row, twice."""
    return np.repeat(np.take(values, np.arange(0, values.shape[axis], 2), axis=axis), 2, axis=axis)


def equalities(rng: Generator) -> ck.CMDP:
    """value = limit, written as two inequalities: the limit is attained, at an end, or just out of reach."""
    sketch, limits = any_chain(rng), []
    for i in range(int(rng.integers(1, 4))):
        values, per_step = table(rng, sketch["policy"].shape, str(rng.choice(PLAIN))), bool(rng.random() < 0.3)
        kind = str(rng.choice(["attained", "exact", "above", "below", "near"]))
        limit = place(rng, sketch, values, kind, per_step, False)
        limits += [
            ck.AtMost(values, limit, f"at most {i}", per_step),
            ck.AtLeast(values, limit, f"at least {i}", per_step),
        ]
    return finish(rng, sketch, limits)


def conflict(rng: Generator) -> ck.CMDP:
    """Two limits on one table that leave a narrow gap, or exclude each other by as little."""
    sketch = any_chain(rng)
    values = table(rng, sketch["policy"].shape, str(rng.choice(PLAIN)))
    limit = place(rng, sketch, values, str(rng.choice(["attained", "tight", "exact"])), False, False)
    apart = limit + rng.choice([-1.0, 1.0]) * max(abs(limit), 1e-3) * 10.0 ** -rng.uniform(2.0, 16.0)
    limits = [ck.AtMost(values, limit, "at most"), ck.AtLeast(values, float(apart), "at least")]
    return finish(rng, sketch, limits + dressed(rng, sketch, PLAIN, ("slack", "tight"))[:2])


def narrow(rng: Generator) -> ck.CMDP:
    """Limits on nearly constant tables, whose spans are a few to a billion rounding errors."""
    sketch = any_chain(rng, states=rng.integers(1, 6))
    shape, values = sketch["policy"].shape, []
    for _ in range(int(rng.integers(1, 5))):
        values.append(rng.choice([1.0, -1.0, 1e3]) * (1.0 + 10.0 ** -rng.uniform(7.0, 15.9) * rng.random(shape)))
    kinds = rng.choice(["attained", "tight", "near", "above", "hair"], size=len(values))
    return finish(
        rng,
        sketch,
        [constraint(rng, sketch, v, str(k), f"c{i}") for i, (v, k) in enumerate(zip(values, kinds, strict=True))],
    )


def brink(rng: Generator) -> ck.CMDP:
    """One row of decimals everywhere, and a limit at the last double above or below what can be attained.

    The row's exact sum differs from one by less than the sum of doubles shows, and 1 / (1 − γ) makes much of it.
    """
    gamma = float(rng.choice(GAMMAS[3:]))
    sketch = outline(rng, "rounded", rng.integers(1, 6), rng.integers(1, 4), gamma)
    sketch["transitions"][:] = sketch["transitions"][0, 0]
    shape = sketch["policy"].shape
    values = [np.resize(np.arange(shape[1]) * 1.0, shape), table(rng, shape, "coins"), table(rng, shape, "action")]
    kinds = rng.choice(["above", "exact", "below", "hair"], p=[0.5, 0.2, 0.2, 0.1], size=3)
    limits = [constraint(rng, sketch, v, str(k), f"c{i}") for i, (v, k) in enumerate(zip(values, kinds, strict=True))]
    return finish(rng, sketch, limits[: int(rng.integers(1, 4))])


def bandit(rng: Generator) -> ck.CMDP:
    """gamma 0 and many limits: a linear program over a product of simplices."""
    sketch = any_chain(rng, states=rng.integers(1, 5), actions=rng.integers(2, 6), gamma=0.0)
    limits = dressed(rng, sketch, PLAIN, ("tight", "attained", "near", "above")) + dressed(rng, sketch, PLAIN, LIMITS)
    return finish(rng, sketch, [type(c)(c.values, c.limit, f"c{i}", c.per_step) for i, c in enumerate(limits[:6])])


def far_sighted(rng: Generator) -> ck.CMDP:
    """gamma .9999 and .99999, where every rounding error is multiplied by 1e4 or 1e5."""
    sketch = any_chain(rng, gamma=float(rng.choice([0.9999, 0.99999])))
    return finish(rng, sketch, dressed(rng, sketch, PLAIN + NASTY[:4], LIMITS))


def missing(rng: Generator) -> ck.CMDP:
    """Actions that are not available everywhere; what stands there does not matter."""
    sketch = any_chain(rng, actions=rng.integers(2, 6))
    mask = rng.random(sketch["policy"].shape) < rng.choice([0.3, 0.7])
    mask[np.arange(len(mask)), rng.integers(mask.shape[1], size=len(mask))] = True
    policy = np.where(mask, sketch["policy"] + 1e-3, 0.0)
    sketch |= {"available": mask, "policy": policy / policy.sum(axis=1, keepdims=True)}
    sketch["transitions"] = np.where(mask[:, :, None], sketch["transitions"], 7.0)
    sketch["objective"] = np.where(mask, sketch["objective"], np.nan)
    limits = dressed(rng, sketch, PLAIN, LIMITS)
    return finish(rng, sketch, [type(c)(np.where(mask, c.values, 1e300), c.limit, c.name, c.per_step) for c in limits])


def two_sided(rng: Generator) -> ck.CMDP:
    """`Equal` and `Between`: attained, degenerate, contradictory."""
    sketch = any_chain(rng)
    return finish(rng, sketch, _mixed_limits(rng, sketch, int(rng.integers(1, 4)), 0.8))


def total(rng: Generator) -> ck.CMDP:
    """Totals until a goal, which every step may reach, or which lies at the end of a way without return."""
    sketch = any_chain(rng, states=rng.integers(1, 7), gamma=0.0)
    P, (S, A) = _without_dust(sketch["transitions"]), sketch["policy"].shape
    if rng.random() < 0.3:  # onwards only
        P = P * np.triu(np.ones((S, S)), 1)[:, None]
    ends = (
        10.0 ** -rng.uniform(0.0, 3.0, size=(S, A)) if rng.random() < 0.7 else np.full((S, A), rng.choice([0.01, 1.0]))
    )
    sums = P.sum(axis=2)
    P = P * np.divide(1.0 - ends, sums, out=np.zeros((S, A)), where=sums > 0.0)[:, :, None]
    whole = np.zeros((S + 1, A, S + 1))
    whole[:S, :, :S], whole[:S, :, S] = P, 1.0 - P.sum(axis=2)
    whole[S, :, S] = 1.0
    sketch |= {
        "transitions": whole,
        "initial": int(rng.integers(0, S)) if rng.random() < 0.5 else np.append(rng.dirichlet(np.ones(S)), 0.0),
        "objective": np.vstack([sketch["objective"], np.zeros(A)]),
        "policy": np.vstack([sketch["policy"], np.eye(A)[0]]),
        "criterion": {"gamma": 1.0},
        "goal": S,
    }
    del sketch["gamma"]
    return finish(rng, sketch, _mixed_limits(rng, sketch, int(rng.integers(0, 4)), 0.3))


def horizon(rng: Generator) -> ck.CMDP:
    """Sums over a few steps, discounted or not, with limits on all of them and on single ones."""
    sketch = any_chain(rng, states=rng.integers(1, 5), actions=rng.integers(1, 4), gamma=0.0)
    T, gamma = int(rng.integers(1, 6)), float(rng.choice([0.0, 0.5, 0.9, 1.0, 1.0, 1.0]))
    sketch["transitions"] = _without_dust(sketch["transitions"])
    sketch["criterion"] = {"horizon": T} | ({"gamma": gamma} if gamma < 1.0 else {})
    del sketch["gamma"]
    return finish(rng, sketch, _mixed_limits(rng, sketch, int(rng.integers(0, 4)), 0.3, T if gamma == 1.0 else None))


def average(rng: Generator) -> ck.CMDP:
    """Long-run averages: of one class, of several, of periodic chains."""
    actions = int(rng.integers(1, 4))
    sketch = any_chain(rng, states=rng.integers(1, 6 if actions < 3 else 5), actions=actions, gamma=0.0)
    sketch["criterion"] = {"average": True}
    del sketch["gamma"]
    return finish(rng, sketch, _mixed_limits(rng, sketch, int(rng.integers(0, 4)), 0.3))


def _without_dust(P: Any) -> Any:
    """Probabilities below 1e-280 are refused where a model is solved as another one."""
    return np.where(P < 1e-280, 0.0, P)


def _mixed_limits(rng: Generator, sketch: dict[str, Any], count: int, both: float, stages: Any = None) -> list[Any]:
    """Limits from one side, or with probability `both` from two; half of them on a single stage, if there are any."""
    limits = []
    for i in range(count):
        values = table(rng, sketch["policy"].shape, str(rng.choice(PLAIN)))
        if "goal" in sketch:
            values[sketch["goal"]] = 0.0
        stage = int(rng.integers(0, stages)) if stages and rng.random() < 0.5 else None
        if rng.random() < both:
            limits.append(both_sides(rng, sketch, values, f"c{i}", stage))
        else:
            limits.append(constraint(rng, sketch, values, str(rng.choice(LIMITS)), f"c{i}", stage))
    return limits


FAMILIES: dict[str, Callable[[Generator], ck.CMDP]] = (
    {chain: of_chain(chain) for chain in CHAINS}
    | {
        f.__name__: f
        for f in (
            *(scales, against, ties, duplicates, equalities, conflict, narrow, brink, bandit, far_sighted, missing),
            *(two_sided, total, horizon, average),
        )
    }
    | {f"medium {chain}": medium(chain) for chain in MEDIUM}
)


def family(index: int) -> str:
    """Medium models are rare: one in 32."""
    names = list(FAMILIES)
    small = len(names) - len(MEDIUM)
    turn, place = divmod(index, 32)
    return names[small + turn % len(MEDIUM)] if place == 31 else names[(31 * turn + place) % small]


def model(seed: int, index: int) -> ck.CMDP:
    """Model `index` of this seed."""
    return FAMILIES[family(index)](np.random.default_rng([seed, index]))
