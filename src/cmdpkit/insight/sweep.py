"""`sweep()`: methods x settings x seeds, each run with a checkpoint of its own, on this machine or on a cluster."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from cmdpkit.checks import Array, check_count, check_nonnegative
from cmdpkit.cluster import check_cluster, distributed, in_order, using
from cmdpkit.files import PathLike, write_csv, write_whole
from cmdpkit.insight.compare import METHODS, Entrant, check_method, entrants_of, seeds_of
from cmdpkit.model import CMDP
from cmdpkit.run.result import recent
from cmdpkit.run.status import Status
from cmdpkit.settings import Sampling
from cmdpkit.simulators import Simulator
from cmdpkit.solver import solve
from cmdpkit.tables import Table
from cmdpkit.training import train

FAILED = "failed: "
STOPPED = "stopped early"


@dataclass(frozen=True)
class Case:
    """A method with one choice of settings; its seeds are judged together."""

    label: str
    method: Any
    options: Mapping[str, Any]  # all of them
    settings: Mapping[str, Any]  # those that vary


@dataclass(frozen=True, eq=False)
class SweepRun:
    """What one run ended with, in the user's sense and units."""

    method: str
    settings: Mapping[str, Any]
    seed: int
    status: str
    iterations: int
    samples: int
    seconds: float
    objective: float  # mean of the last 20 iterations of a training run
    constraint_values: Array  # (m,)
    violation: float  # largest, relative to max(1, |limit|)
    folder: Path

    @property
    def choice(self) -> str:
        """The settings that vary, in words."""
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())

    @property
    def stopped(self) -> bool:
        """Whether other settings did better, and the run was not continued."""
        return self.status == STOPPED


@dataclass(frozen=True, eq=False)
class Sweep:
    """The runs of a sweep. `sweep.csv` and `sweep.png` in its folder show the same.

    Attributes:
        runs: in the order methods, settings, seeds.
        maximise: whether larger objectives are better.
        slack: relative violations up to this count as none when settings are ranked.
        complete: False if the sweep was interrupted; the same call continues it.
        folder: where the runs are.
    """

    runs: list[SweepRun]
    maximise: bool
    slack: float
    complete: bool
    folder: Path

    @property
    def best(self) -> SweepRun:
        """The first run of the best settings: least violation beyond `slack`, then best mean objective over seeds."""
        groups = self._groups()
        finished = {key: runs for key, runs in groups.items() if not any(run.stopped for run in runs)}
        rank = partial(score, maximise=self.maximise, slack=self.slack)
        return min((finished or groups).values(), key=rank)[0]

    def table(self) -> Table:
        """One row per run."""
        names = list(dict.fromkeys(name for run in self.runs for name in run.settings))
        width = max((run.constraint_values.size for run in self.runs), default=0)
        columns: dict[str, list[Any]] = {"method": [run.method for run in self.runs]}
        columns |= {name: [run.settings.get(name, "") for run in self.runs] for name in names}
        for name in ("seed", "status", "iterations", "samples", "seconds", "objective"):
            columns[name] = [getattr(run, name) for run in self.runs]
        for i in range(width):
            columns[f"value {i + 1}"] = [
                float(run.constraint_values[i]) if i < run.constraint_values.size else math.nan for run in self.runs
            ]
        return Table(columns | {"violation": [run.violation for run in self.runs]})

    def to_csv(self, path: PathLike) -> None:
        write_csv(path, self.table().columns)

    def plot(self, path: PathLike, formats: Sequence[str] = ()) -> None:
        """Draw objective and violation of all runs to an image file. Needs matplotlib."""
        from cmdpkit.insight.plots import plot_sweep

        plot_sweep(self, path, formats)

    def __str__(self) -> str:
        return self.table().text()

    def _groups(self) -> dict[str, list[SweepRun]]:
        groups: dict[str, list[SweepRun]] = {}
        for run in self.runs:
            groups.setdefault(_key(run.method, run.settings), []).append(run)
        return groups


def sweep(
    subject: Any,
    methods: Sequence[Any] | Mapping[str, Any] = METHODS,
    *,
    out: PathLike,
    grid: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | Sequence[int] = 1,
    iterations: int = 300,
    limits: Sequence[float] | None = None,
    sampling: Sampling | None = None,
    halving: int | None = None,
    slack: float = 0.05,
    cluster: str | None = None,
    progress: bool = False,
    **options: Any,
) -> Sweep:
    """Run every method with all settings and seeds; a sweep that was killed continues where its runs were.

    Args:
        subject: an environment as for `train` (a name or a function), a `Simulator`, or a `CMDP`.
        methods: as for `compare`: names, rules, pairs of a method and its options; a mapping gives each a label.
        out: a folder for the checkpoints of all runs, `sweep.csv` and `sweep.png`. On a cluster every node must see it
            under the same name.
        grid: options by name, each with the values to try; all combinations are run.
        seeds: number of seeds, or a list of them.
        iterations: of each run.
        limits: one limit per cost of an environment.
        sampling: of `solve`.
        halving: with a number k, settings that do badly stop early (successive halving): all run for a part of the
            iterations, the best 1/k of them for k times as many, until the last run for all `iterations`.
        slack: relative violations up to this count as none when settings are ranked.
        cluster: "local", "auto" or the address of a Ray cluster on whose workers the runs are made, with the same
            results; see docs/cluster.md.
        progress: show a progress bar on stderr, on a terminal.
        **options: of every call of `train` or `solve`.

    Unknown methods and wrong options are refused before the first run. A run that fails is a row of the table with the
    error as its status; the others go on.

    Example:
        >>> import cmdpkit as ck, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found = ck.sweep(
        ...         ck.problems.paper(), ["npg-pd"], out=folder, grid={"eta_dual": [0.1, 1.0]}, iterations=50, step=1.0
        ...     )
        >>> [(run.settings, run.status) for run in found.runs]
        [({'eta_dual': 0.1}, 'iteration limit'), ({'eta_dual': 1.0}, 'iteration limit')]
    """
    numbers = seeds_of(seeds)
    check_count(iterations, "iterations", least=1)
    check_nonnegative(slack, "slack")
    if halving is not None:
        check_count(halving, "halving", least=2)
    is_env = not isinstance(subject, (CMDP, Simulator))
    if is_env and limits is None:
        raise ValueError("the subject is an environment: give limits=, one limit per cost (or [])")
    if not is_env and limits is not None:
        raise ValueError("limits= is for environments; models and simulators have limits of their own")
    cases = _cases(entrants_of(methods), grid or {}, options, sampling)
    for case in cases:
        check_method(case.method, "the subject", subject, sampling, limits, case.options)
    check_cluster(cluster)
    folder = Path(out).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    _check_same(folder, subject, limits)
    runs: dict[tuple[int, int], SweepRun] = {}
    work = (subject, None if limits is None else list(limits), cases, str(folder))
    with using(cluster):
        complete = _climb(work, numbers, iterations, halving, slack, runs, progress)
    maximise = is_env or subject.maximise
    found = Sweep([runs[key] for key in sorted(runs)], maximise, slack, complete, folder)
    found.to_csv(folder / "sweep.csv")
    with contextlib.suppress(ImportError):
        found.plot(folder / "sweep.png")
    return found


def _cases(
    entrants: Sequence[Entrant], grid: Mapping[str, Any], options: Mapping[str, Any], sampling: Sampling | None
) -> list[Case]:
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, (Sequence, np.ndarray)) or not len(values):
            raise ValueError(f"grid[{name!r}] must be a list of the values to try, got {values!r}")
        if name in options:
            raise ValueError(f"{name!r} is given as an option and in the grid; leave out one of them")
    shared = {**options, **({} if sampling is None else {"sampling": sampling})}
    cases = []
    for entrant in entrants:
        for choice in product(*grid.values()):
            settings = dict(zip(grid, choice, strict=True))
            cases.append(Case(entrant.label, entrant.method, {**shared, **entrant.options, **settings}, settings))
    return cases


def _check_same(folder: Path, subject: Any, limits: Any) -> None:
    """The folder may hold runs of the same sweep, perhaps of other settings, and nothing else."""
    if isinstance(subject, Simulator | CMDP):
        about: dict[str, Any] = {"subject": repr(subject)}
    else:
        name = subject if isinstance(subject, str) else getattr(subject, "__name__", type(subject).__name__)
        about = {"subject": name, "limits": [float(x) for x in limits]}
    file = folder / "sweep.json"
    if file.exists() and json.loads(file.read_text()) != about:
        raise ValueError(f"{folder} holds a sweep of another subject: {file.read_text()}; choose another folder")
    write_whole(file, lambda stream: stream.write(json.dumps(about).encode()))


def _climb(
    work: Any,
    seeds: Sequence[int],
    iterations: int,
    halving: int | None,
    slack: float,
    runs: dict[tuple[int, int], SweepRun],
    progress: bool,
) -> bool:
    """Run the cases to the end, or from rung to rung with fewer of them; False if that was interrupted."""
    subject, _, cases, _ = work
    maximise = getattr(subject, "maximise", True)
    alive = list(range(len(cases)))
    rungs = 0 if halving is None else math.ceil(math.log(len(cases), halving) - 1e-9)
    for rung in range(rungs, -1, -1):
        steps = max(1, iterations // (halving or 1) ** rung)
        blocks = [(case, seed, steps, rung == 0) for case in alive for seed in seeds]
        if not _run_all(work, blocks, runs, progress):
            return False
        if rung:
            assert halving is not None
            scores = {
                case: score([runs[case, seed] for seed in seeds], maximise=maximise, slack=slack) for case in alive
            }
            alive = sorted(sorted(alive, key=scores.__getitem__)[: math.ceil(len(alive) / halving)])
    return True


def _run_all(work: Any, blocks: list[Any], runs: dict[tuple[int, int], SweepRun], progress: bool) -> bool:
    from cmdpkit.report import tracker

    answers = in_order(_run, blocks, work, name=partial(_name, work[2]), ahead=1)
    with tracker() if progress else contextlib.nullcontext(_plain) as track:
        for case, seed, *_ in track(blocks, "sweep"):
            try:
                runs[case, seed] = next(answers)
            except KeyboardInterrupt:
                if not distributed():
                    raise
                return False
            if runs[case, seed].status == Status.INTERRUPTED.value:
                return False
    return True


def _plain(items: Any, _: str) -> Any:
    return items


def _run(work: Any, _: None, block: tuple[int, int, int, bool]) -> SweepRun:
    """One run, continued from its checkpoint if there is one."""
    (subject, limits, cases, folder), (number, seed, steps, last) = work, block
    case: Case = cases[number]
    place = Path(folder) / _slug(case, seed)
    place.mkdir(exist_ok=True)
    about: dict[str, Any] = {"method": case.label, "settings": case.settings, "seed": seed, "folder": place}
    try:
        if limits is not None:
            result: Any = train(
                subject, case.method, limits, seed=seed, iterations=steps, out=place / "run", **case.options
            )
        else:
            file = place / "checkpoint.npz"
            result = solve(subject, case.method, seed=seed, max_iterations=steps, checkpoint=file, **case.options)
    except Exception as error:
        nothing: dict[str, Any] = {"iterations": 0, "samples": 0, "seconds": np.nan, "objective": np.nan}
        status = f"{FAILED}{type(error).__name__}: {error}"
        return SweepRun(**about, **nothing, status=status, constraint_values=np.zeros(0), violation=np.inf)
    objective, values = result.objective, result.constraint_values
    if limits is not None and result.iterations:
        objective, values = recent(result.history)
    done = result.status is Status.ITERATION_LIMIT
    return SweepRun(
        **about,
        status=STOPPED if done and not last else result.status.value,
        iterations=result.iterations,
        samples=int(result.samples or 0),
        seconds=result.time,
        objective=float(objective),
        constraint_values=np.asarray(values),
        violation=_violation(subject, limits, np.asarray(values)),
    )


def _violation(subject: Any, limits: Any, values: Array) -> float:
    if limits is not None:
        bounds = np.asarray(limits, dtype=float)
        return float((np.maximum(values - bounds, 0.0) / np.maximum(1.0, np.abs(bounds))).max(initial=0.0))
    scales = np.array([max(1.0, *(abs(end) for end in c.ends if np.isfinite(end))) for c in subject.constraints])
    return float((np.asarray(subject.misses(values)) / scales).max(initial=0.0))


def score(runs: Sequence[SweepRun], *, maximise: bool, slack: float) -> tuple[float, float]:
    """How settings are ranked, smaller first: mean violation beyond the slack, then the mean objective."""
    beyond = float(np.mean([max(0.0, run.violation - slack) for run in runs]))
    objective = float(np.mean([run.objective for run in runs]))
    objective = -objective if maximise else objective
    return (math.inf if math.isnan(beyond) else beyond, math.inf if math.isnan(objective) else objective)


def _key(label: str, settings: Mapping[str, Any]) -> str:
    return " ".join([label, *(f"{name}={value}" for name, value in settings.items())])


def _slug(case: Case, seed: int) -> str:
    """A folder name that people can read, and that no other run has."""
    text = _key(case.label, case.settings)
    plain = {k: v for k, v in case.options.items() if isinstance(v, (bool, int, float, str, list, tuple))}
    code = hashlib.sha256(f"{text} {sorted(plain.items())!r}".encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9.=-]+', '_', text)[:80]}-{code}-{seed}"


def _name(cases: Sequence[Case], block: tuple[int, int, int, bool]) -> str:
    return f"the run of {_key(cases[block[0]].label, cases[block[0]].settings)}, seed {block[1]}"
