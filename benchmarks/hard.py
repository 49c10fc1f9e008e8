"""Hard models for `pmd-pd`: `python benchmarks/hard.py [count]` prints how many it solves, and what that costs.

Two to six states, two actions, deterministic transitions, costs of 0, 1 or 10, one to three costs with limits, discount
factors up to 0.999, a single start state. The limits are degenerate on purpose, in one of five ways.

`python benchmarks/hard.py medium [count]` compares `pmd-pd` with `auto` on lines, stars, grids, walks and cliffs of 200
to 3,000 states, in one run: it should take no more than five times as long, or 50 ms if that is more.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from unittest import mock

import numpy as np
import scipy.sparse as sp

import cmdpkit as ck
from cmdpkit.evaluation import PolicySystem
from cmdpkit.exact.mdp import minimise

FAMILIES = ("some slack", "all limits through one point", "no Slater point", "equalities", "every limit twice")
STEPS = 1_000

CHAINS = ("line", "star", "grid", "walk", "cliff")
MEDIUM, MEDIUM_STEPS, RATIO, FLOOR = 94, 300, 5.0, 0.05


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


def chain(rng: np.random.Generator, kind: str, states: int, actions: int) -> sp.csr_array:
    """Transitions (S·A, S) of one kind."""
    s = np.repeat(np.arange(states)[:, None], actions, axis=1)
    slip = float(rng.choice([0.0, 0.1, 0.25]))
    if kind == "walk":  # the drift is chosen
        up = rng.uniform(0.0, 1.0, actions)
        moves = [(np.minimum(s + 1, states - 1), up), (np.maximum(s - 1, 0), 1.0 - up)]
    elif kind == "cliff":  # upwards, or back to the start
        fall = 10.0 ** -rng.uniform(0.0, 8.0, actions)
        moves = [(np.minimum(s + 1, states - 1), 1.0 - fall), (np.zeros_like(s), fall)]
    else:
        if kind == "line":
            targets = np.clip(s + np.resize([1, -1, 2, -2], actions), 0, states - 1)
        elif kind == "star":  # leaves lead back to the hub, or stay
            targets = np.where(rng.random(s.shape) < 0.5, 0, s)
            targets[0] = rng.integers(0, states, actions)
        else:
            width = round(states**0.5)
            row, column = np.divmod(np.arange(states), width)
            ways = [(0, 1), (1, 0), (0, -1), (-1, 0)][:actions]
            to = [np.clip(row + r, 0, width - 1) * width + np.clip(column + c, 0, width - 1) for r, c in ways]
            targets = np.stack(to, axis=1)
        moves = [(targets, 1.0 - slip), (s, slip)]
    pairs = np.arange(s.size)
    parts = [(np.broadcast_to(p, s.shape).ravel(), (pairs, to.ravel())) for to, p in moves]
    total = sum(sp.csr_array(part, shape=(s.size, states)) for part in parts)
    return sp.csr_array(total)


def medium_model(seed: int) -> tuple[ck.CMDP, str]:
    """200 to 3,000 states, with limits between the least use and that of the best policy without limits."""
    rng = np.random.default_rng([94, seed])
    kind = CHAINS[seed % len(CHAINS)]
    states, actions = int(rng.choice([200, 500, 1_000, 3_000])), int(rng.integers(2, 5))
    gamma, m = float(rng.choice([0.9, 0.99, 0.999])), int(rng.integers(1, 4))
    states = round(states**0.5) ** 2 if kind == "grid" else states
    P = chain(rng, kind, states, actions)
    costs = rng.random((m + 1, states, actions))
    style = int(rng.integers(0, 3))
    if style == 1:  # few pairs cost anything
        costs = np.where(rng.random(costs.shape) < 0.1, costs, 0.0)
    elif style == 2:  # smooth in the state
        costs = costs[:, :1, :] * (np.linspace(0.0, 1.0, states) ** rng.choice([0, 1, 3]))[None, :, None]
    initial = 0 if rng.random() < 0.5 else None
    free = ck.CMDP(P, cost=costs[0], constraints=[ck.AtMost(c, 0.0) for c in costs[1:]], gamma=gamma, initial=initial)
    best = minimise(free, np.eye(m + 1)[0]).values
    limits = []
    for i, cost in enumerate(costs[1:], 1):
        least = float(minimise(free, np.eye(m + 1)[i]).values[i])
        share = float(rng.choice([0.001, 0.05, 0.3, 0.7, 0.9]))
        limits.append(ck.AtMost(cost, least + share * max(float(best[i]) - least, 0.0) + 1e-9))
    return ck.CMDP(P, cost=costs[0], constraints=limits, gamma=gamma, initial=initial), kind


def compare(count: int = MEDIUM) -> None:
    """`pmd-pd` against `auto`, by the processor's time: other work on the machine does not count."""
    for seed in (6, 21):  # these need the compiled kernels and an LP: imports do not count
        ck.solve(medium_model(seed)[0], "pmd-pd", max_iterations=MEDIUM_STEPS)
    slow, proved, ratios = [], 0, []
    for seed in range(count):
        cmdp, kind = medium_model(seed)
        times, results = [], []
        for method, options in (("auto", {}), ("pmd-pd", {"max_iterations": MEDIUM_STEPS})):
            start = time.process_time()
            results.append(ck.solve(cmdp, method, **options))
            times.append(time.process_time() - start)
        exact, found = results
        ended = found.status in (ck.Status.OPTIMAL, ck.Status.INFEASIBLE)
        ratios.append(times[1] / max(times[0], FLOOR))
        proved += ended
        if not ended or ratios[-1] > RATIO:
            detail = f"auto {times[0]:.2f} s {exact.status.name}, pmd-pd {times[1]:.2f} s {found.status.name}"
            slow.append(f"seed {seed} ({kind}, {cmdp.states} states, gamma {cmdp.gamma}): {detail}")
            print(slow[-1], flush=True)
    print(f"pmd-pd proves {proved} of {count} in {MEDIUM_STEPS} steps, {count - len(slow)} within {RATIO:g} times auto")
    median, most = np.median(ratios), max(ratios)
    print(f"ratio of times: median {median:.1f}, 90 % {np.percentile(ratios, 90):.1f}, most {most:.1f}")


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
    if sys.argv[1:2] == ["medium"]:
        compare(*map(int, sys.argv[2:]))
    else:
        main(*map(int, sys.argv[1:]))
