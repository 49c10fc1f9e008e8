"""The measurements behind the defaults: `python benchmarks/decisions.py` prints the tables of docs/design.md.

Counts of evaluations and oracle calls, not seconds: they do not depend on the machine.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import cmdpkit as ck
from cmdpkit.evaluation import PolicySystem
from cmdpkit.exact import newton
from cmdpkit.learners import ExactLearner
from cmdpkit.learners.tabular import LOWEST_LOG_PROBABILITY, reference_span
from cmdpkit.primal_dual import primal_dual
from cmdpkit.rules import PMDPD
from cmdpkit.rules.growing import GrowingPMDPD
from cmdpkit.run import finish as exact_methods
from models import random_model

STEPS = 2_000


def models() -> list[ck.CMDP]:
    """120 random models with one to eight constraints, and the catalogue."""
    random = (
        random_model(seed, constraints=1 + seed % 8, gamma=(0.5, 0.8, 0.9, 0.95, 0.99)[seed % 5]) for seed in range(120)
    )
    return [m for m in random if m.states > 1 and m.actions > 1] + [make() for make in ck.problems.CATALOGUE.values()]


def oracle_calls(table: list[ck.CMDP], method: str) -> str:
    calls = [ck.solve(cmdp, method).iterations for cmdp in table]
    return f"{np.mean(calls):.1f} | {np.percentile(calls, 90):.0f} | {max(calls)}"


def first_within(cmdp: ck.CMDP, iterates, optimum: float) -> int | None:
    """The first macro step from which the last iterate stays within 1e-6 for 20 steps."""
    since = None
    for iterate in islice(iterates, STEPS):
        violation = (np.maximum(iterate.v, 0.0) / cmdp.tolerance_scales).max()
        error = max(abs(iterate.objective - optimum) / max(1.0, abs(optimum)), violation)
        since = (since or iterate.k) if error <= 1e-6 else None
        if since is not None and iterate.k >= since + 20:
            break
    return since


def pmdpd_row(table: list[ck.CMDP], optima: list[float], make) -> str:
    first = [first_within(cmdp, make(cmdp), optimum) for cmdp, optimum in zip(table, optima, strict=True)]
    counts = [STEPS if f is None else f for f in first]
    return f"{sum(f is None for f in first)} | {np.median(counts):.0f} | {np.mean(counts):.0f}"


def fixed(step: float, eta_dual: float):
    def make(cmdp: ck.CMDP):
        spans = reference_span(cmdp.spans)
        learner = ExactLearner(cmdp, ck.TabularPolicy.uniform(cmdp.states, cmdp.actions), step=step / spans[0])
        return primal_dual(learner, PMDPD(eta_dual * (1.0 - cmdp.gamma) * spans[0] / spans[1:] ** 2))

    return make


def evaluations(table: list[ck.CMDP], growth: float) -> str:
    """Policies evaluated by PMD-PD until its proof of 1e-6 is complete."""
    plain, counts, failed = PolicySystem.__init__, [], 0
    for cmdp in table:
        with mock.patch.object(PolicySystem, "__init__", autospec=True, side_effect=plain) as evaluation:
            failed += ck.solve(cmdp, "pmd-pd", max_iterations=100, growth=growth).status is not ck.Status.OPTIMAL
        counts.append(evaluation.call_count)
    return f"{failed} | {np.median(counts):.0f} | {np.percentile(counts, 90):.0f} | {max(counts)}"


def default(cmdp: ck.CMDP):
    uniform = ck.TabularPolicy.uniform(cmdp.states, cmdp.actions)
    return primal_dual(ExactLearner(cmdp, uniform, floor=LOWEST_LOG_PROBABILITY), GrowingPMDPD())


def main() -> None:
    table = models()
    print(f"cmdpkit {ck.__version__}, {len(table)} models (seeds 0 to 119 and the catalogue)\n")
    print("| PMD-PD steps before the columns | oracle calls, mean | 90 % | most |\n|---|---|---|---|")
    for steps in (1, 2, 3, 5, 8, 12):
        exact_methods.NEIGHBOURHOOD = steps
        print(f"| {steps} | {oracle_calls(table, 'auto')} |")
    exact_methods.NEIGHBOURHOOD = 3
    print("\n| columns alone | oracle calls, mean | 90 % | most |\n|---|---|---|---|")
    for name, patience in (("cutting planes only", 0), ("with Newton steps", 2)):
        newton.PATIENCE = patience
        print(f"| {name} | {oracle_calls(table, 'columns')} |")
    print("\n| random sparse models, S = 1,000 | cutting planes only | with Newton steps |\n|---|---|---|")
    for m in (1, 3, 8, 20):
        large = [ck.problems.garnet(1_000, 10, 5, m, 0.99, seed) for seed in (11, 12, 13)]
        calls = []
        for patience in (0, 2):
            newton.PATIENCE = patience
            calls.append(f"{np.mean([ck.solve(cmdp, max_iterations=200).iterations for cmdp in large]):.0f}")
        print(f"| m = {m} | {' | '.join(calls)} |")
    optima = [cmdp.sense * ck.solve(cmdp, tol=1e-9).objective for cmdp in table]
    print(f"\n| PMD-PD, last iterate to 1e-6 | fails within {STEPS:,} steps | median | mean |\n|---|---|---|---|")
    for step in (5.0, 20.0, 100.0):
        for eta_dual in (0.3, 1.0, 3.0, 10.0):
            row = pmdpd_row(table, optima, fixed(step, eta_dual))
            print(f"| fixed: step {step:g}, eta_dual {eta_dual:g} (scaled by the spans) | {row} |")
    print(f"| growing, implicit dual (the default) | {pmdpd_row(table, optima, default)} |")
    print(
        "\n| growth of the steps | not proved in 100 steps | evaluations, median | 90 % | most |\n|---|---|---|---|---|"
    )
    for growth in (1.5, 2.0, 3.0, 5.0, 10.0, 30.0):
        print(f"| {growth:g} | {evaluations(table, growth)} |")


if __name__ == "__main__":
    main()
