"""PMD-PD on long-run averages, with advantages from gain and bias. The paper's theory does not cover this."""

from __future__ import annotations

from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.drawing import METHODS, STYLES
from cmdpkit.experiments.adaptive import FIXED
from cmdpkit.experiments.common import Claim, Section, Settings, append_row, random_instance, read_csv, write_csv
from cmdpkit.experiments.error_curves import (
    FLOOR,
    TOL,
    append_curve,
    count,
    crossing,
    empty_rows,
    first_within,
    plot_curves,
    read_curves,
)
from cmdpkit.learners.tabular import reference_span
from cmdpkit.model import CMDP, AtLeast, AtMost
from cmdpkit.problems import paper, two_queues
from cmdpkit.solver import solve

STEPS = 300
PLAIN, BEST, GROWING, NPG_PD, CRPO = (
    "PMD-PD, step 1, η′ 1",
    "PMD-PD, the best of 8 pairs of fixed steps",
    "PMD-PD, growing steps (default)",
    "NPG-PD, step 1, η′ 1",
    "CRPO, step 1",
)
LOOKS = {
    PLAIN: STYLES[4],
    BEST: STYLES[3],
    NPG_PD: METHODS["npg-pd"],
    CRPO: METHODS["crpo"],
    GROWING: METHODS["pmd-pd"],
}


def models() -> dict[str, CMDP]:
    return {
        "the paper's instance, utility ≥ 0.7": _paper(),
        "two queues, S = 36, m = 2": two_queues(capacity=5, average=True),
        "random, period 3, S = 30, m = 2": periodic(),
    }


def _paper() -> CMDP:
    instance = paper().with_criterion(average=True)
    return instance.with_limits({instance.names[0]: 0.7})


def periodic(states: int = 30, actions: int = 4, period: int = 3, seed: int = 0) -> CMDP:
    """Every step leads from one layer of states to the next, so that the chains of all policies have a period."""
    rng = np.random.default_rng(seed)
    layer = np.arange(states) % period
    transitions = rng.exponential(size=(states, actions, states)) ** 3
    transitions *= (layer[None, :] == (layer[:, None] + 1) % period)[:, None, :]
    transitions /= transitions.sum(axis=2, keepdims=True)
    reward, *costs = rng.uniform(size=(3, states, actions))
    limits = [AtMost(cost, 0.4, name=f"cost {i}") for i, cost in enumerate(costs, 1)]
    return CMDP(transitions, reward=reward, constraints=limits, average=True, initial=0, action_axis=1)


def errors(cmdp: CMDP, optimum: float, method: str, steps: int, **options: Any) -> Array:
    """Of the last iterate, step by step: relative gap or violation, whichever is larger."""
    history = solve(cmdp, method, tol=0.0, max_iterations=steps, **options).history
    gap = np.abs(history["objective"] - optimum) / max(1.0, abs(optimum))
    over = cmdp.signs * (history["constraint_values"][:, cmdp.owners] - cmdp.limits) / cmdp.tolerance_scales
    return np.asarray(np.maximum(np.maximum(gap, over.max(axis=1)), FLOOR))


def runs(cmdp: CMDP, steps: int, every: int) -> dict[str, Array]:
    """The error of every method; fixed steps are in units of the model's spans, every so many pairs of them."""
    optimum = float(solve(cmdp, tol=1e-11).objective)
    spans = reference_span(cmdp.spans)
    pairs = [(a / spans[0], b * spans[0] / spans[1:] ** 2) for a, b in FIXED[::every]]
    fixed = [errors(cmdp, optimum, "pmd-pd", steps, step=a, eta_dual=b) for a, b in pairs]
    return {
        PLAIN: errors(cmdp, optimum, "pmd-pd", steps, step=1.0, eta_dual=1.0),
        BEST: min(fixed, key=lambda error: (first_within(error), error[-1])),
        NPG_PD: errors(cmdp, optimum, "npg-pd", steps, step=1.0, eta_dual=1.0),
        CRPO: errors(cmdp, optimum, "crpo", steps, step=1.0),
        GROWING: errors(cmdp, optimum, "pmd-pd", min(steps, 40)),
    }


def random_average(seed: int) -> CMDP:
    """A random instance with the limits, per step, of its discounted version."""
    instance = random_instance(200 + seed, constraints=1 + seed % 5, gamma=0.95)
    limits = {c.name or "": 0.05 * c.limit for c in instance.constraints if isinstance(c, AtLeast)}
    return instance.with_criterion(average=True).with_limits(limits)


def run(settings: Settings) -> None:
    steps, every = (40, 8) if settings.quick else (STEPS, 2)
    rows = empty_rows()
    for name, cmdp in settings.track(list(models().items()), "average: curves"):
        for method, error in runs(cmdp, steps, every).items():
            append_curve(rows, name, method, error, points=150)
    write_csv(settings.folder / "average.csv", rows)
    table: dict[str, list[Any]] = {"seed": [], "m": [], "steps": [], "gap": [], "violation": []}
    for seed in settings.track(range(3 if settings.quick else settings.seeds), "average: random instances"):
        cmdp = random_average(seed)
        found = solve(cmdp, "pmd-pd", tol=TOL)
        assert found.certificate.optimal(TOL)
        append_row(
            table,
            (seed, cmdp.num_constraints, found.iterations, found.certificate.gap, found.certificate.violation),
        )
    write_csv(settings.folder / "average_random.csv", table)


def plot(settings: Settings) -> None:
    plot_curves(settings, "average", LOOKS, GROWING)


def section(settings: Settings) -> Section:
    claims = []
    for name, methods in read_curves(settings, "average", LOOKS).items():
        steps = {method: crossing(curve) for method, curve in methods.items()}
        others = min(s for method, s in steps.items() if method != GROWING)
        claims.append(
            Claim(
                f"{name}: steps until the last iterate stays within 1e-6 of the optimum",
                "; ".join(f"{method}: {count(s, methods[method])}" for method, s in steps.items()),
                "holds: the default is the fastest" if steps[GROWING] < others else "does not hold",
            )
        )
    table = read_csv(settings.folder / "average_random.csv")
    claims.append(
        Claim(
            f"A certified 1e-6 on {len(table['seed'])} random instances with one to five limits on averages",
            f"median {np.median(table['steps']):.0f} steps, at most {table['steps'].max():.0f}",
            "holds: all proved" if max(table["gap"].max(), table["violation"].max()) <= TOL else "does not hold",
        )
    )
    return Section(
        "Beyond the paper: PMD-PD on long-run averages",
        claims,
        [("average.png", "Error of the last iterate: the larger of relative gap and violation, by macro step.")],
        "A step of PMD-PD needs advantages and visits, which the bias of a policy and its stationary distribution give "
        "([theory.md](theory.md#long-run-averages)); rules and steps are those of discounted models. **The paper's "
        "theory does not cover this**: its proofs use the contraction by γ, and none of its theorems is claimed here. "
        "Convergence is a measurement, on models in which every policy comes back to a state; where policies can stay "
        "in parts of a model it fails, and `auto` is the method. What is certified does not depend on how a policy was "
        "found.",
    )
