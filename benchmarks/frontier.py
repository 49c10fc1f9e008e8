"""What a frontier costs, in units of one solve of the same model: `python benchmarks/frontier.py [--quick]`.

Twenty limits from the tightest value that can be met to where the limit stops binding, and, if asked for, the frontier
certified everywhere between them. A solve is the best of three at the default tolerance, and at that of the frontier.
The model's own limits may be easy ones, so that it is also compared with the mean solve at the twenty limits.
Times are the processor's, so that the ratio does not depend on what else runs. `--more` takes other models.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads that wait count as processor time

import numpy as np

import cmdpkit as ck
from peers import grid, queues, random_sparse

POINTS = 20


def models(quick: bool, more: bool) -> dict[str, Callable[[], ck.CMDP]]:
    scale = 4 if quick else 1
    others = {
        "two queues": lambda: queues(1_600 // scale),
        "random, 3": lambda: random_sparse(2_000 // scale, constraints=3),
        "inventory": ck.problems.inventory,
        "maintenance": ck.problems.maintenance,
        "wireless": ck.problems.wireless,
        "average": lambda: ck.problems.garnet(200 // scale, constraints=2, seed=3).with_criterion(average=True),
    }
    if more:
        return others
    return {
        "random sparse": lambda: random_sparse(3_000 // scale, constraints=2),
        "two queues": lambda: queues(2_500 // scale),
        "garnet": lambda: ck.problems.garnet(300 // scale, constraints=2, seed=7),
        "grid": lambda: grid(2_500 // scale),
    }


def best(times: int, call: Callable[[], Any]) -> tuple[float, Any]:
    seconds = []
    for _ in range(times):
        started = time.process_time()
        answer = call()
        seconds.append(time.process_time() - started)
    return min(seconds), answer


def mean_solve(cmdp: ck.CMDP, limits: np.ndarray) -> float:
    """Seconds of a solve at one of the limits, as the default tolerance and method have it."""
    there = [cmdp.with_limits({cmdp.names[0]: float(limit)}) for limit in limits]
    return sum(best(1, lambda model=model: ck.solve(model))[0] for model in there) / len(there)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="models of a quarter of the size")
    parser.add_argument("--more", action="store_true", help="other models")
    parser.add_argument("--everywhere", action="store_true", help="the whole frontier as well")
    given = parser.parse_args()
    titles = ("model", "states", "solve", "to 1e-4", "at a limit", "20 limits", "in solves", "at a limit")
    titles += ("everywhere", "points") if given.everywhere else ()
    print("".join(f"{title:>14}" for title in titles))
    for name, make in models(given.quick, given.more).items():
        cmdp = make()
        ck.solve(cmdp)  # loads libraries and compiled code
        solve, _ = best(3, lambda cmdp=cmdp: ck.solve(cmdp))
        rough, _ = best(3, lambda cmdp=cmdp: ck.solve(cmdp, tol=1e-4))
        # The range is all that is needed of a rough frontier
        whole, curve = best(
            1, lambda cmdp=cmdp: ck.frontier(cmdp, cmdp.names[0], tol=1e-4 if given.everywhere else 0.05)
        )
        assert curve.complete
        inset = 1e-3 * (curve.limits[-1] - curve.limits[0]) if given.more else 0.0  # some ends are infinitely steep
        wanted = np.linspace(curve.limits[0] + inset, curve.limits[-1] - inset, POINTS)
        twenty, found = best(2, lambda cmdp=cmdp, wanted=wanted: ck.frontier(cmdp, cmdp.names[0], wanted))
        assert found.complete
        each = mean_solve(cmdp, wanted)
        times = [f"{1e3 * seconds:.1f} ms" for seconds in (solve, rough, each, twenty)]
        tail = (f"{1e3 * whole:.1f} ms", curve.limits.size) if given.everywhere else ()
        ratios = (f"{twenty / solve:.1f}", f"{twenty / each:.1f}")
        print("".join(f"{entry:>14}" for entry in (name, cmdp.states, *times, *ratios, *tail)), flush=True)


if __name__ == "__main__":
    main()
