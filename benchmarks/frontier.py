"""What a frontier costs, in units of one solve of the same model: `python benchmarks/frontier.py [--quick]`.

Twenty limits from the tightest value that can be met to where the limit stops binding, and the frontier certified
everywhere between them. A solve is the best of three at the default tolerance, and at that of the frontier.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import cmdpkit as ck
from peers import grid, queues, random_sparse

POINTS = 20


def models(quick: bool) -> dict[str, Callable[[], ck.CMDP]]:
    scale = 4 if quick else 1
    return {
        "random sparse": lambda: random_sparse(3_000 // scale, constraints=2),
        "two queues": lambda: queues(2_500 // scale),
        "garnet": lambda: ck.problems.garnet(300 // scale, constraints=2, seed=7),
        "grid": lambda: grid(2_500 // scale),
    }


def best(times: int, call: Callable[[], Any]) -> tuple[float, Any]:
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        answer = call()
        seconds.append(time.perf_counter() - started)
    return min(seconds), answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="models of a quarter of the size")
    titles = ("model", "states", "solve", "to 1e-4", "20 limits", "in solves", "everywhere", "points")
    print("".join(f"{title:>14}" for title in titles))
    for name, make in models(parser.parse_args().quick).items():
        cmdp = make()
        ck.solve(cmdp)  # loads libraries and compiled code
        solve, _ = best(3, lambda cmdp=cmdp: ck.solve(cmdp))
        rough, _ = best(3, lambda cmdp=cmdp: ck.solve(cmdp, tol=1e-4))
        whole, curve = best(1, lambda cmdp=cmdp: ck.frontier(cmdp, cmdp.names[0]))
        wanted = np.linspace(curve.limits[0], curve.limits[-1], POINTS)
        twenty, given = best(2, lambda cmdp=cmdp, wanted=wanted: ck.frontier(cmdp, cmdp.names[0], wanted))
        assert given.complete
        assert curve.complete
        times = [f"{seconds:.2f} s" for seconds in (solve, rough, twenty)]
        row = (name, cmdp.states, *times, f"{twenty / solve:.1f}", f"{whole:.2f} s", curve.limits.size)
        print("".join(f"{entry:>14}" for entry in row), flush=True)


if __name__ == "__main__":
    main()
