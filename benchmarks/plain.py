"""Models without limits: `solve` against the solvers of plain MDPs, at equal proved accuracy.

`python benchmarks/plain.py [--quick] [--write]`; `--write` rewrites docs/benchmarks_plain.md. Peers get the model in
their own form before the clock starts. Every answer is checked against ours; times are the best of several, with the
solvers in turn. On a busy machine, `--processor` takes processor time. Storm is asked for sound values, from a start
that leads to the initial distribution to an end that every step reaches with probability 1 - gamma.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from quantecon.markov import DiscreteDP

import cmdpkit as ck
from cmdpkit.experiments.common import append_row, write_csv
from cmdpkit.files import write_whole
from peers import killed
from scale import PLAIN, machine

TOL = 1e-6
Solver = Callable[[], Callable[[], float]]
"""Makes a run, which returns the value; only the run is timed."""

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks_plain.md"


def garnet(states: int, seed: int) -> ck.CMDP:
    return ck.problems.garnet(states, actions=10, successors=5, constraints=1, gamma=0.99, seed=seed)


def tandem(states: int, seed: int) -> ck.CMDP:
    return ck.problems.two_queues(capacity=round(states**0.5) - 1, arrivals=(0.4, 0.3 + 0.01 * seed), gamma=0.999)


def grid(states: int, seed: int) -> ck.CMDP:
    return ck.problems.grid(rows=round(states**0.5), columns=round(states**0.5), slip=0.1 + 0.01 * seed, gamma=0.999)


def inventory(states: int, seed: int) -> ck.CMDP:
    """With a price for what is sold instead of a fill rate: without either the best is not to order at all."""
    model = ck.problems.inventory(capacity=states - 1, demand=4.0 + 0.1 * seed)
    cost = model.objective - 40.0 * np.asarray(model.constraints[0].values)
    return ck.CMDP(model.transitions, gamma=model.gamma, initial=model.initial, cost=cost)


FAMILIES = {
    "random graph": (garnet, (1_000, 10_000, 90_000)),
    "two queues": (tandem, (2_500, 10_000, 90_000)),
    "grid": (grid, (2_500, 10_000, 40_000)),
    "inventory": (inventory, (300, 1_000)),
}
"""Models, and their sizes."""

SLOW = 1.0
"""A solver that took longer than so many seconds is not run again."""

TOO_SLOW = 5.0
"""One that took longer than this is not run on the larger models of a family."""

LARGEST_FILE = 40_000
"""Storm reads files; those of larger models take minutes to write."""

NO_END = {"grid": ("policy_iteration",), "random graph": ("policy_iteration",)}
"""Methods that take minutes: far-sighted policies found one state after the other, factors that fill up."""


def without_limits(cmdp: ck.CMDP) -> ck.CMDP:
    kind = "reward" if cmdp.maximise else "cost"
    given = {kind: np.asarray(cmdp.objective)}
    return ck.CMDP(cmdp.transitions, gamma=cmdp.gamma, initial=cmdp.initial, **given)


def quantecon(cmdp: ck.CMDP, method: str) -> Solver:
    states, actions = cmdp.states, cmdp.actions
    matrix = cmdp.transitions if sp.issparse(cmdp.transitions) else np.asarray(cmdp.transitions).reshape(-1, states)
    reward = -cmdp.costs[0]
    where = np.repeat(np.arange(states), actions), np.tile(np.arange(actions), states)
    peer = DiscreteDP(reward, sp.csr_matrix(matrix), cmdp.gamma, *where)

    def run() -> float:
        answer = peer.solve(method=method, epsilon=TOL, max_iter=100_000)
        return cmdp.sense * -float(cmdp.initial @ answer.v)

    return lambda: run


def mdpsolver(cmdp: ck.CMDP) -> Solver | None:
    try:
        import mdpsolver as peer
    except ImportError:
        return None
    states, actions = cmdp.states, cmdp.actions
    matrix, reward = sp.csr_matrix(cmdp.transitions), -cmdp.costs[0].reshape(states, actions)
    ends = matrix.indptr.reshape(-1)
    rows = [slice(ends[k], ends[k + 1]) for k in range(states * actions)]
    shares = [[matrix.data[rows[s * actions + a]].tolist() for a in range(actions)] for s in range(states)]
    columns = [[matrix.indices[rows[s * actions + a]].tolist() for a in range(actions)] for s in range(states)]

    def fresh() -> Callable[[], float]:
        model = peer.model()  # one that was solved before starts from its solution
        model.mdp(discount=cmdp.gamma, rewards=reward.tolist(), tranMatProbs=shares, tranMatColumns=columns)

        def run() -> float:
            model.solve(algorithm="mpi", tolerance=TOL)
            return cmdp.sense * -float(cmdp.initial @ np.array(model.getValueVector()))

        return run

    return fresh


def storm(cmdp: ck.CMDP) -> Solver | None:
    """None where it is not installed, or costs are negative, which its totals do not allow."""
    try:
        import stormpy
    except ImportError:
        return None
    if cmdp.states > LARGEST_FILE or np.min(cmdp.objective) < 0.0:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.drn"
        killed(cmdp).to_drn(path)
        model = stormpy.build_model_from_drn(str(path))
    name, kind = ("reward", "max") if cmdp.maximise else ("cost", "min")
    (query,) = stormpy.parse_properties(f'R{{"{name}"}}{kind}=? [C]')

    def run() -> float:
        environment = stormpy.Environment()
        environment.solver().force_soundness = True
        answer = stormpy.model_checking(model, query, environment=environment)
        return float(answer.get_value(model.initial_states[0]))

    return lambda: run


def solvers(family: str, cmdp: ck.CMDP) -> dict[str, Solver]:
    found: dict[str, Solver] = {"cmdpkit": lambda: lambda: ck.solve(cmdp, tol=TOL).objective}
    for method in ("policy_iteration", "modified_policy_iteration"):
        if method not in NO_END.get(family, ()):
            found[f"QuantEcon, {method.replace('_', ' ')}"] = quantecon(cmdp, method)
    others = {"mdpsolver, modified policy iteration": mdpsolver(cmdp), "Storm": storm(cmdp)}
    return found | {name: other for name, other in others.items() if other is not None}


def measured(
    family: str, size: int, seed: int, clock: Callable[[], float], beaten: set[str]
) -> dict[str, tuple[float, float]]:
    """Best seconds of every solver, and its value. Those too slow for larger models are added to `beaten`."""
    cmdp = without_limits(FAMILIES[family][0](size, seed))
    found: dict[str, tuple[float, float]] = {}
    runs = {name: fresh for name, fresh in solvers(family, cmdp).items() if name not in beaten}
    gc.collect()
    gc.freeze()  # the lists that mdpsolver takes are no one else's garbage to search
    for turn in range(20 if size <= 3_000 else 6 if size <= 10_000 else 4):
        # In both orders: whoever comes after a solver that uses much memory finds the caches cold
        for name, fresh in list(runs.items())[:: 1 if turn % 2 else -1]:
            if found.get(name, (0.0, 0.0))[0] > SLOW:
                continue  # once is enough
            run = fresh()
            started = clock()
            value = run()
            found[name] = min(clock() - started, found.get(name, (np.inf, 0.0))[0]), value
    beaten |= {name for name, (seconds, _) in found.items() if seconds > TOO_SLOW and name != "cmdpkit"}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the smaller sizes only")
    parser.add_argument("--write", action="store_true", help=f"rewrite {PAGE.name}")
    parser.add_argument("--processor", action="store_true", help="processor time, for a busy machine")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    clock = time.process_time if given.processor else time.perf_counter
    data: dict[str, list[object]] = {name: [] for name in ("family", "states", "solver", "time", "value", "right")}
    lines = ["| model | states | cmdpkit | best peer | ratio | other peers |", "|---|---|---|---|---|---|"]
    for family, (_, sizes) in FAMILIES.items():
        beaten: set[str] = set()
        for size in sizes[: 2 if given.quick else None]:
            found = measured(family, size, given.seed, clock, beaten)
            for name, (seconds, value) in found.items():
                append_row(data, (family, size, name, seconds, value, int(not off(value, found["cmdpkit"][1]))))
            lines.append(row(family, size, found))
            print(lines[-1], flush=True)
    if given.write:
        write_csv(PLAIN, data)
        write_whole(PAGE, lambda file: file.write(page(lines, given).encode()))


def row(family: str, size: int, found: dict[str, tuple[float, float]]) -> str:
    seconds, ours = found.pop("cmdpkit")
    peers = sorted((time, name, value) for name, (time, value) in found.items())
    named = [f"{name} {time * 1e3:.3g} ms{off(value, ours)}" for time, name, value in peers]
    right = [peer for peer in peers if not off(peer[2], ours)]
    ratio = f"{right[0][0] / seconds:.2f}" if right else "-"
    best = named[peers.index(right[0])] if right else "-"
    others = "; ".join(name for name in named if name != best)
    return f"| {family} | {size:,} | {seconds * 1e3:.3g} ms | {best} | {ratio} | {others} |"


def off(value: float, ours: float) -> str:
    """A remark on a peer whose value is not the optimum to ten times the tolerance."""
    wrong = abs(value - ours) > 10.0 * TOL * max(1.0, abs(ours))
    return f" (off by {abs(value - ours):.1e})" if wrong else ""


def page(lines: list[str], given: argparse.Namespace) -> str:
    kind = "processor time" if given.processor else "time"
    flags = " --quick" * given.quick + " --processor" * given.processor
    return "\n".join(
        [
            "# Benchmarks without limits\n",
            f"Written by `python benchmarks/plain.py --write{flags} --seed {given.seed}` on: {machine()}.\n",
            f"`solve(model)` to a proved relative gap of {TOL:g} against solvers of plain MDPs at the same tolerance,",
            f"in {kind}, the best of several runs in turn. A ratio above 1 means that cmdpkit is faster. Policy",
            "iteration of QuantEcon is left out on grids and random graphs, where it takes minutes; a solver that took",
            f"more than {TOO_SLOW:.0f} s is left out on larger models. Storm is asked for sound values of models with",
            f"up to {LARGEST_FILE:,} states and no negative costs; it finds the value of the start alone, without a",
            "policy. The values of the other peers are not proved.\n",
            *lines,
            "",
        ]
    )


if __name__ == "__main__":
    main()
