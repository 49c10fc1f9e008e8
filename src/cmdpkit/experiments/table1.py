"""Table 1: the measured rate of every row, compared with the proved one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from cmdpkit.checks import Array
from cmdpkit.experiments.common import (
    Claim,
    Section,
    Settings,
    append_row,
    errors,
    linear_rate,
    read_csv,
    run_fixed,
    slope,
    write_csv,
)
from cmdpkit.learners.exact import ExactLearner
from cmdpkit.model import CMDP
from cmdpkit.policy import TabularPolicy
from cmdpkit.primal_dual import primal_dual
from cmdpkit.problems import paper
from cmdpkit.rules import NPG, AcceleratedNPG, Weights
from cmdpkit.solver import solve

STEPS = 3_000
LINEAR = 0.9995  # a fitted factor per step below this counts as linear convergence
TAU = 0.5  # weight of the entropy
UNCONSTRAINED = {
    "PG": (False, 0.0, 30.0),
    "NPG": (True, 0.0, 1.0),
    "PG-Entropy": (False, TAU, 30.0),
    "NPG-Entropy": (True, TAU, 1.0),
}
"""Rows without constraints: natural or plain gradient, weight of the entropy, step."""
PROVED = {
    "PG": "1/T",
    "NPG": "1/T",
    "PG-Entropy": "exp(−T)",
    "NPG-Entropy": "exp(−T)",
    "NPG-PD": "1/√T",
    "CRPO": "1/√T",
    "PMD-PD": "log(T)/T",
    "PMD-PD-Zero": "log(T)/T, violation 0",
    "AR-CPO": "log²(T)/T",
    "Accelerated-NPG": "log(T)/T, of the problem with entropy",
    "OPG-PD": "exp(−T), of the last iterate",
}
LENGTHS = (30, 55, 100, 180, 330)
"""Dual steps of the runs of AR-CPO: its proof sets both of its weights for a number of them, here log(steps)/steps."""
INNER = 20
"""Natural gradient steps per dual step of AR-CPO and Accelerated-NPG."""
COLUMNS = (
    "row",
    "average gap slope",
    "average violation slope",
    "last gap slope",
    "last factor a step",
    "final gap",
    "final violation",
)


def run(settings: Settings) -> None:
    steps = 300 if settings.quick else STEPS
    rows: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    cmdp = paper()
    for name in settings.track(list(PROVED), "table1"):
        if name == "AR-CPO":
            append_row(rows, (name, *_lengths(cmdp, LENGTHS[:3] if settings.quick else LENGTHS)))
            continue
        gap, violation, last = _errors(cmdp, name, steps)
        k = np.arange(1.0, steps + 1)
        entry = (
            name,
            slope(k, gap, steps // 30),
            slope(k, violation, steps // 30) if name not in UNCONSTRAINED else float("nan"),
            slope(k, last, steps // 30),
            linear_rate(last),
            gap[-1],
            violation[-1],
        )
        append_row(rows, entry)
    write_csv(settings.folder / "table1.csv", rows)


def _errors(cmdp: CMDP, name: str, steps: int) -> tuple[Array, Array, Array]:
    """Gap and violation of the average, and gap of the last iterate, step by step."""
    if name == "Accelerated-NPG":
        return _with_entropy(cmdp, AcceleratedNPG(TAU, 0.5 * TAU), steps)
    return _unconstrained(cmdp, name, steps) if name in UNCONSTRAINED else _constrained(cmdp, name.lower(), steps)


def _constrained(cmdp: CMDP, method: str, steps: int) -> tuple[Array, Array, Array]:
    optimum = solve(cmdp, tol=1e-10).objective
    if method == "pmd-pd-zero":
        result = solve(cmdp, method, tol=0.0, max_iterations=steps, step=1.0, eta_dual=1.0)
    elif method == "opg-pd":
        result = solve(cmdp, method, tol=0.0, max_iterations=steps)
    else:
        result = run_fixed(cmdp, method, steps)
    gap, violation, last, _ = errors(result, optimum)
    return gap, violation, last


def _lengths(cmdp: CMDP, lengths: Sequence[int]) -> tuple[float, ...]:
    """Slopes of the errors of the last policies of runs of several lengths, and the errors of the longest."""
    optimum, ends = solve(cmdp, tol=1e-10).objective, []
    for steps in lengths:
        weight = np.log(steps) / steps
        result = solve(cmdp, "ar-cpo", tol=0.0, max_iterations=steps, entropy=weight, dual_weight=weight)
        _, _, gap, violation = errors(result, optimum)
        ends.append([gap[-1], violation[-1]])
    gap, violation = np.abs(ends).T
    return _fitted(lengths, gap), _fitted(lengths, violation), float("nan"), float("nan"), *ends[-1]


def _fitted(lengths: Sequence[int], error: Array) -> float:
    return float(np.polyfit(np.log(lengths), np.log(error), 1)[0])


def _proved_slope(lengths: Sequence[int]) -> float:
    """That of log²(T)/T, with T natural gradient steps, over runs of these lengths."""
    total = INNER * np.array(lengths)
    return _fitted(lengths, np.log(total) ** 2 / total)


def _with_entropy(cmdp: CMDP, rule: AcceleratedNPG, steps: int) -> tuple[Array, Array, Array]:
    """Errors of the last iterate against the optimum of V_0 + τ Σ_t γᵗ log(π/uniform) within the limits."""
    uniform = TabularPolicy.uniform(cmdp.states, cmdp.actions)
    learner = ExactLearner(cmdp, uniform, inner_steps=INNER)
    pairs = [
        (_regularised(learner, cmdp), float(iterate.v[0])) for iterate in islice(primal_dual(learner, rule), steps)
    ]
    gap, violation = np.array(pairs).T
    gap = gap - _regularised_optimum(cmdp)
    return gap, violation, gap


def _regularised(learner: ExactLearner, cmdp: CMDP, lam: float = 0.0) -> float:
    """V_0 + λ (V_1 − limit) + τ Σ_t γᵗ log(π/uniform) of the current policy."""
    away = learner.policy.log_pi + np.log(cmdp.actions)
    view = learner.look()
    return view.objective + lam * float(view.values[0]) + TAU * float((learner.occupancy * away).sum())


def _regularised_optimum(cmdp: CMDP) -> float:
    """The largest value of the dual function, a maximum in one variable."""
    learner = ExactLearner(cmdp, TabularPolicy.uniform(cmdp.states, cmdp.actions))

    def dual(lam: float) -> float:
        learner.improve(Weights(1.0, np.array([lam]), inner_steps=200, step=1.0 / TAU, entropy=TAU))
        return -_regularised(learner, cmdp, lam)

    return -float(minimize_scalar(dual, bounds=(0.0, 20.0), method="bounded", options={"xatol": 1e-9}).fun)


def _unconstrained(cmdp: CMDP, name: str, steps: int) -> tuple[Array, Array, Array]:
    """Gap to the optimum of the function that the method minimises: with entropy, the regularised value."""
    natural, tau, step = UNCONSTRAINED[name]
    plain = CMDP(
        cmdp.transitions.reshape(cmdp.states, cmdp.actions, -1), reward=cmdp.objective, gamma=cmdp.gamma, action_axis=1
    )
    # With entropy the step 1/τ of NPG-Entropy, soft policy iteration, finds the regularised optimum in a few steps.
    best = min(islice(_values(plain, True, tau, 1.0 / tau), 60)) if tau else -solve(plain, tol=1e-10).objective
    gaps = np.array(list(islice(_values(plain, natural, tau, step), steps))) - best
    return np.cumsum(gaps) / np.arange(1, steps + 1), np.zeros(steps), gaps


def _values(cmdp: CMDP, natural: bool, tau: float, step: float) -> Iterator[float]:
    """V_0 + τ Σ_t γᵗ log(π/uniform) along the iterates."""
    uniform = TabularPolicy.uniform(cmdp.states, cmdp.actions)
    learner = ExactLearner(cmdp, uniform, step, alpha=tau, fixed_anchor=uniform if tau else None, natural=natural)
    for _ in primal_dual(learner, NPG()):
        regulariser = learner.policy.log_probabilities - uniform.log_probabilities
        yield float((learner.occupancy * (cmdp.costs[0].reshape(regulariser.shape) + tau * regulariser)).sum())


def plot(settings: Settings) -> None:
    """The table is the figure."""


def section(settings: Settings) -> Section:
    data = read_csv(settings.folder / "table1.csv")
    claims = []
    for i, name in enumerate(data["row"]):
        average, violation, last, factor = (float(data[c][i]) for c in COLUMNS[1:5])
        final = float(data["final violation"][i])
        parts = [f"average gap: slope {average:.2f}"]
        if not np.isnan(violation):
            parts.append(f"average violation: slope {violation:.2f}, final {final:+.1e}")
        rates = [] if np.isnan(last) else [f"slope {last:.2f}"]
        rates += [f"factor {factor:.4f} per step"] if factor < LINEAR else []
        parts.append(f"last gap: {', '.join(rates)}")
        if name == "AR-CPO":
            parts = [f"last gap: slope {average:.2f}", f"last violation: slope {violation:.2f}, final {final:+.1e}"]
        if name == "Accelerated-NPG":
            parts[:2] = [f"last violation: slope {violation:.2f}, final {final:+.1e}"]
        verdict = _verdict(name, average, violation, last, factor, final)
        claims.append(Claim(f"{name}: O({PROVED[name]})", "; ".join(parts), verdict))
    remarks = (
        f"{STEPS:,} steps, slopes fitted from step {STEPS // 30} on. Natural-gradient rows take the effective step 1, "
        f"plain-gradient rows the step 30; entropy rows have τ = {TAU} and show the gap to the regularised optimum. An "
        "average of iterates cannot fall faster than 1/k, whatever the last iterate does. AR-CPO is run "
        f"{len(LENGTHS)} times, for {LENGTHS[0]} to {LENGTHS[-1]} dual steps with τ = μ = log(steps)/steps, and shown "
        f"with the slopes over these lengths; log²(T)/T itself has {_proved_slope(LENGTHS):.2f} there. "
        f"Accelerated-NPG keeps τ, and its gap is to the optimum with entropy within the limit. Both have {INNER} "
        "natural-gradient steps per dual step."
    )
    return Section("Table 1: rates of all algorithms", claims, [], remarks)


def _verdict(name: str, average: float, violation: float, last: float, factor: float, final: float) -> str:
    if "Entropy" in name or name == "OPG-PD":
        return "holds" if factor < LINEAR else "does not"
    if name in ("PG", "NPG"):
        return "holds" if last <= -0.95 else "does not"
    if name in ("NPG-PD", "CRPO"):
        inside = final <= 0.0
        good = average <= -0.5 and (inside or violation <= -0.5)
        return (
            f"holds (faster in the gap{'; the violation is negative, so zero' if inside else ''})"
            if good
            else "does not"
        )
    if name == "PMD-PD-Zero":
        return "holds" if average <= -0.85 and final <= 0.0 else "does not"
    if name == "AR-CPO":
        return "holds" if max(average, violation) <= _proved_slope(LENGTHS) else "does not"
    if name == "Accelerated-NPG":
        return "holds" if max(average, violation) <= -0.85 else "does not"
    return "holds; the last iterate is linear" if max(average, violation) <= -0.85 else "does not"
