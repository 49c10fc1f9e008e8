"""Hard models for `pmd-pd`: `python benchmarks/hard.py [count]` prints how many it solves, and what that costs.

Two to six states, two actions, deterministic transitions, costs of 0, 1 or 10, one to three costs with limits, discount
factors up to 0.999, a single start state. The limits are degenerate on purpose, in one of five ways.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from unittest import mock

import numpy as np

import cmdpkit as ck
from cmdpkit.evaluation import PolicySystem

FAMILIES = ("some slack", "all limits through one point", "no Slater point", "equalities", "every limit twice")
STEPS = 1_000


def hard_model(seed: int) -> tuple[ck.CMDP, str]:
    """A feasible model and its family: what a mixture of two random policies uses meets every limit."""
    rng = np.random.default_rng([13, seed])
    family = FAMILIES[seed % len(FAMILIES)]
    states, gamma, m = int(rng.integers(2, 7)), float(rng.choice([0.9, 0.99, 0.999])), int(rng.integers(1, 4))
    P = np.eye(states)[rng.integers(0, states, (states, 2))]  # P[s, a] is a row with a single 1
    costs = rng.choice([0.0, 1.0, 10.0], (m + 1, states, 2))
    if family == "no Slater point":
        least = ck.solve(
            ck.CMDP(P, action_axis=1, cost=costs[1], gamma=gamma, initial=0), tol=1e-12
        ).policy.probabilities
        policies = [least, least]
    else:
        policies = [np.eye(2)[rng.integers(0, 2, states)] for _ in range(2)]
    share = rng.choice([0.25, 0.5, 0.9])
    occupancy = sum(w * visits(P, pi, gamma) for w, pi in zip((share, 1.0 - share), policies, strict=True))
    used = np.einsum("isa,sa->i", costs[1:], occupancy)
    limits: list[ck.AtMost | ck.AtLeast] = []
    for cost, value in zip(costs[1:], used, strict=True):
        slack = rng.choice([0.0, 0.01, 0.1]) * 10.0 / (1.0 - gamma) if family == "some slack" else 0.0
        limits.append(ck.AtMost(cost, value + slack))
        if family == "equalities":
            limits.append(ck.AtLeast(cost, value))
        if family == "every limit twice":
            limits.append(ck.AtMost(2.0 * cost, 2.0 * value))
    return ck.CMDP(P, action_axis=1, cost=costs[0], constraints=limits, gamma=gamma, initial=0), family


def visits(P: np.ndarray, pi: np.ndarray, gamma: float) -> np.ndarray:
    """Discounted visits to every pair, from state 0."""
    flow = np.eye(len(P)) - gamma * np.einsum("sa,sat->ts", pi, P)
    return np.asarray(np.linalg.solve(flow, np.eye(len(P))[0])[:, None] * pi)


def solved(cmdp: ck.CMDP, method: str, **options) -> tuple[ck.Result, int, float]:
    """The result, the policies that were evaluated for it, and its time."""
    plain, start = PolicySystem.__init__, time.perf_counter()
    with mock.patch.object(PolicySystem, "__init__", autospec=True, side_effect=plain) as evaluation:
        result = ck.solve(cmdp, method, **options)
    return result, evaluation.call_count, time.perf_counter() - start


def main(count: int = 1_000) -> None:
    print(f"cmdpkit {ck.__version__}, {count} models\n")
    print("| family | models | `auto` proves 1e-6 | `pmd-pd` does | evaluations, median | 90 % | most |")
    print("|---|---|---|---|---|---|---|")
    rows = []
    for seed in range(count):
        cmdp, family = hard_model(seed)
        exact, _, exact_time = solved(cmdp, "auto")
        found, evaluations, found_time = solved(cmdp, "pmd-pd", max_iterations=STEPS)
        rows.append((family, seed, exact.status, found, evaluations, exact_time, found_time))
    for family in (*FAMILIES, "all"):
        chosen = [row for row in rows if family in (row[0], "all")]
        counts = [row[4] for row in chosen]
        both = [sum(status is ck.Status.OPTIMAL for status in column) for column in zip(
            *((row[2], row[3].status) for row in chosen), strict=True
        )]  # fmt: skip
        shown = (*both, f"{np.median(counts):.0f}", f"{np.percentile(counts, 90):.0f}", max(counts))
        print(f"| {family} | {len(chosen)} | {' | '.join(map(str, shown))} |")
    print(f"\ntime: auto {sum(row[5] for row in rows):.1f} s, pmd-pd {sum(row[6] for row in rows):.1f} s")
    statuses = Counter(row[3].status.name for row in rows)
    print("statuses of pmd-pd: " + ", ".join(f"{name} {number}" for name, number in statuses.most_common()))
    for family, seed, status, found, *_ in rows:
        if found.status is not status:
            proved = f"gap {found.certificate.gap:.1e}, violation {found.certificate.violation:.1e}"
            print(f"seed {seed} ({family}): auto {status.name}, pmd-pd {found.status.name} with {proved}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
