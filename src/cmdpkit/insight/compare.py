"""`compare()`: several methods on the same models, simulators or environments, and which of them is best."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cmdpkit.checks import check_confidence, check_count, check_nonnegative, required_arguments
from cmdpkit.cluster import check_cluster, distributed, in_order, using
from cmdpkit.insight.league import BY, Comparison, Run
from cmdpkit.insight.trials import ModelTrial, is_random, trial
from cmdpkit.model import CMDP
from cmdpkit.run.arguments import EXACT, ZERO, check_name
from cmdpkit.run.choice import choose
from cmdpkit.run.status import Status
from cmdpkit.settings import NeuralSettings, Sampling, TabularSettings
from cmdpkit.simulators import Simulator
from cmdpkit.solver import solve
from cmdpkit.training import train

METHODS = ("pmd-pd", "npg-pd", "crpo")
ITERATES = ("last", "average")
Plan = list[tuple["Target", "Entrant", int]]
Key = tuple[str, int]


@dataclass(frozen=True)
class Target:
    """What the methods are run on, by seed; only a family of models gives different ones."""

    name: str
    make: Callable[[int], Any]
    family: bool = False


@dataclass(frozen=True)
class Entrant:
    """A method under its label, with options of its own."""

    label: str
    method: Any
    options: Mapping[str, Any]


def compare(
    models: Any,
    methods: Sequence[Any] | Mapping[str, Any] = METHODS,
    *,
    by: str = "iterations",
    seeds: int | Sequence[int] = 1,
    tol: float = 1e-6,
    max_iterations: int | None = None,
    time_limit: float | None = None,
    sampling: Sampling | None = None,
    limits: Sequence[float] | None = None,
    iterate: str = "last",
    confidence: float = 0.95,
    progress: bool = False,
    cluster: str | None = None,
    **options: Any,
) -> Comparison:
    """Run several methods on the same models and rank them.

    On a `CMDP` the error is the larger of relative gap and relative violation, as for `tol` of `solve`, against the
    optimum that "auto" certifies first; with `sampling` the exact values of the learned policies count, not their
    estimates. Simulators and environments have no certified optimum: their objectives are compared, and each limit is
    satisfied, violated or undecided.

    Args:
        models: a `CMDP`, a `Simulator`, an environment as for `train`, or a function of a seed that returns a model
            (random instances); or several of them, as a sequence or as a mapping of names.
        methods: names, rules, or classes of rules, also of your own, which need not be registered; or pairs of one of
            them and a dict of its options. A mapping gives each a label.
        by: what runs are measured in: "iterations" as each method counts them, "evaluations" of policies, "seconds",
            or "samples" (transitions or environment steps).
        seeds: number of runs of each, with seeds 0, 1, ..., or a list of seeds. Runs without random numbers are made
            once, unless `by` is "seconds".
        tol: the accuracy that runs on a `CMDP` are to reach.
        max_iterations, time_limit, sampling: of each run, as for `solve`.
        limits: one limit per cost of an environment.
        iterate: "last", or "average": of the iterates of a first-order method on a `CMDP`.
        confidence: of Student's intervals for means over seeds; errors, and what it took to reach `tol`, are averaged
            as logarithms.
        progress: show a progress bar on stderr, on a terminal.
        cluster: "local", "auto" or the address of a Ray cluster on whose workers the runs are made, with the same
            results (seconds are those of a worker); see docs/cluster.md.
        **options: options of every call of `solve` or `train`.

    Example:
        >>> import cmdpkit as ck
        >>> paper_steps = {"step": 1.0, "eta_dual": 1.0}
        >>> entrants = {"pmd-pd": "pmd-pd", "npg-pd": ("npg-pd", paper_steps)}
        >>> found = ck.compare(ck.problems.paper(), entrants, max_iterations=100)
        >>> [(s.method, s.reached, s.status) for s in found.standings]
        [('pmd-pd', 1, 'proved'), ('npg-pd', 0, 'iteration limit')]
    """
    numbers = seeds_of(seeds)
    _check_call(by, tol, confidence, iterate)
    targets, entrants = _targets(models), entrants_of(methods)
    subjects = {target.name: target.make(numbers[0]) for target in targets}
    _check_subjects(targets, subjects, limits, by, sampling, iterate)
    _check_methods(entrants, subjects, by, sampling, limits, options)
    plan = _plan(targets, entrants, numbers, subjects, by, sampling)
    shared = {"tol": tol, "max_iterations": max_iterations, "time_limit": time_limit, "sampling": sampling} | options
    field = Field(targets, entrants, subjects, numbers[0], limits, iterate, shared)
    with using(check_cluster(cluster)):
        runs, trials = _runs(field, plan, progress)
    complete = len(runs) == len(plan) and runs[-1].status != Status.INTERRUPTED.value
    return Comparison(
        runs=runs,
        by=by,
        tol=tol,
        confidence=confidence,
        constraints={name: each.constraints for (name, _), each in reversed(trials.items())},
        maximise={name: each.maximise for (name, _), each in reversed(trials.items())},
        possible={name: each.possible for (name, _), each in reversed(trials.items())},
        notes=list(_notes(runs, trials.values(), by, tol, confidence, iterate, complete)),
        complete=complete,
    )


@dataclass(frozen=True)
class Field:
    """Everything that runs are made of."""

    targets: Sequence[Target]
    entrants: Sequence[Entrant]
    subjects: Mapping[str, Any]
    first: int  # the seed of the subjects
    limits: Sequence[float] | None
    iterate: str
    shared: Mapping[str, Any]  # options of all runs

    def trial(self, key: Key) -> Any:
        name, seed = key
        target = next(target for target in self.targets if target.name == name)
        subject = self.subjects[name] if seed == self.first else target.make(seed)
        return trial(name, subject, self.limits, self.iterate, self.shared)

    def key(self, target: Target, seed: int) -> Key:
        """Runs of the same key share what is known of their model."""
        return target.name, seed if target.family else self.first


def _runs(field: Field, plan: Plan, progress: bool) -> tuple[list[Run], dict[Key, Any]]:
    """Make the runs in order, until one is interrupted; what is known of the models, as far as it was needed."""
    places = {id(entrant): place for place, entrant in enumerate(field.entrants)}
    blocks = [(field.key(target, seed), places[id(entrant)], seed) for target, entrant, seed in plan]
    trials: dict[Key, Any] = {}
    if distributed():
        keys = list(dict.fromkeys(key for key, _, _ in blocks))
        trials = dict(zip(keys, in_order(_trial, keys, field, name=_optimum), strict=True))
    runs: list[Run] = []
    answers = in_order(_run, blocks, field, trials, name=partial(_named, field.entrants), ahead=1)
    for _ in _tracked(plan, progress):
        try:
            runs.append(next(answers))
        except KeyboardInterrupt:
            if not distributed():
                raise
            break
        if runs[-1].status == Status.INTERRUPTED.value:
            break
    return runs, trials


def _optimum(key: Key) -> str:
    return f"the optimum of {key[0]}"


def _trial(field: Field, _: None, key: Key) -> Any:
    return field.trial(key)


def _run(field: Field, trials: dict[Key, Any], block: tuple[Key, int, int]) -> Run:
    key, number, seed = block
    if key not in trials:
        trials[key] = field.trial(key)
    entrant = field.entrants[number]
    given = {name: value for name, value in field.shared.items() if value is not None} | dict(entrant.options)
    run: Run = trials[key].run(entrant.label, entrant.method, seed, given)
    return run


def _named(entrants: Sequence[Entrant], block: tuple[Key, int, int]) -> str:
    return f"the run of {entrants[block[1]].label} on {block[0][0]}, seed {block[2]}"


def _plan(
    targets: Sequence[Target],
    entrants: Sequence[Entrant],
    seeds: Sequence[int],
    subjects: Mapping[str, Any],
    by: str,
    sampling: Sampling | None,
) -> Plan:
    """Every run to make; those that a seed would not change are made once, unless they are timed."""
    found: Plan = []
    for target in targets:
        repeated = target.family or by == "seconds" or is_random(subjects[target.name], sampling)
        for seed in seeds if repeated else seeds[:1]:
            found += [(target, entrant, seed) for entrant in entrants]
    return found


def _tracked(plan: Plan, progress: bool) -> Iterator[tuple[Target, Entrant, int]]:
    from cmdpkit.report import tracker

    with tracker() if progress else contextlib.nullcontext(_plain) as track:
        yield from track(plan, "compare")


def _plain(items: Any, _: str) -> Any:
    return items


def _notes(
    runs: Sequence[Run], trials: Iterable[Any], by: str, tol: float, confidence: float, iterate: str, complete: bool
) -> Iterator[str]:
    """What a reader of the league and its figure must know."""
    exact = [each for each in trials if isinstance(each, ModelTrial)]
    if exact:
        which = "average" if iterate == "average" else "last"
        yield (
            f"error: the larger of relative gap and violation of the {which} iterate, against the optimum that auto "
            f"proves to {max(max(each.accuracy for each in exact), 1e-16):.0e}"
        )
        if max(each.accuracy for each in exact) > 0.1 * tol:
            yield "the optimum is not proved much more accurately than the tolerance: errors below its gap are noise"
    if by == "iterations" and len({run.method for run in runs} & {*EXACT}):
        yield "iterations are counted as each method counts them: oracle calls of auto and columns, pivots of lp"
    most = max((len({r.seed for r in runs if r.model == run.model}) for run in runs), default=0)
    if most > 1:
        yield (
            f"[ ]: Student's {confidence:.0%} interval of the mean over {most} seeds (errors and costs: of their "
            "logarithms), each on its own; best, worse, undecided: by paired differences"
        )
    elif any(run.random for run in runs) or by == "seconds":
        yield "one seed: there are no intervals, and verdicts are undecided"
    if not complete:
        yield "interrupted: not all runs were made"


# -- what is compared --------------------------------------------------------------------------------------------------


def _targets(models: Any) -> list[Target]:
    if isinstance(models, Mapping):
        found = [_target(str(name), subject) for name, subject in models.items()]
    elif isinstance(models, Sequence) and not isinstance(models, str):
        found = [_target(None, subject, i) for i, subject in enumerate(models)]
    else:
        found = [_target(None, models)]
    if not found:
        raise ValueError("models is empty; give a model, a simulator or an environment")
    _refuse_twice([target.name for target in found], "models")
    return found


def _target(name: str | None, subject: Any, number: int = 0) -> Target:
    if isinstance(subject, (CMDP, Simulator)):
        return Target(name or f"model {number + 1}", lambda _: subject)
    own = subject if isinstance(subject, str) else getattr(subject, "__name__", type(subject).__name__)
    shown = str(name or own)
    if _takes_a_seed(subject):
        return Target(shown, subject, family=True)
    if not isinstance(subject, str) and not callable(subject) and not hasattr(subject, "num_envs"):
        raise TypeError(
            f"models holds a {type(subject).__name__}; give a CMDP, a Simulator, an environment (a name or a function "
            "that makes it), or a function of a seed that returns a model"
        )
    return Target(shown, lambda _: subject)


def _takes_a_seed(subject: Any) -> bool:
    """A function of one argument makes models; environments are made by functions of none, or classes."""
    return callable(subject) and not isinstance(subject, type) and required_arguments(subject) == 1


def entrants_of(methods: Any) -> list[Entrant]:
    if isinstance(methods, str) or not isinstance(methods, (Sequence, Mapping)):
        methods = [methods]
    labelled = methods.items() if isinstance(methods, Mapping) else [(None, each) for each in methods]
    found = [_entrant(label, each) for label, each in labelled]
    if not found:
        raise ValueError("methods is empty; give the names of methods, or rules")
    _refuse_twice([entrant.label for entrant in found], "methods")
    return found


def _entrant(label: str | None, given: Any) -> Entrant:
    method, options = given if isinstance(given, tuple) and len(given) == 2 else (given, {})
    if not isinstance(options, Mapping):
        raise TypeError(f"a method with options is a pair (method, dict), not {given!r}")
    if isinstance(method, type):
        try:
            method = method()
        except TypeError as error:
            raise TypeError(f"{method.__name__} cannot be made without arguments ({error}); pass an instance") from None
    name = method if isinstance(method, str) else type(method).__name__
    shown = ", ".join(f"{key}={value}" for key, value in options.items())
    return Entrant(label or (f"{name} ({shown})" if shown else name), method, options)


def _refuse_twice(names: Sequence[str], what: str) -> None:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"{what} holds {twice[0]!r} twice; give a mapping of labels")


# -- checks ------------------------------------------------------------------------------------------------------------


def seeds_of(seeds: Any) -> list[int]:
    if isinstance(seeds, Sequence) and not isinstance(seeds, str):
        found = [check_count(seed, "seeds", least=0) for seed in seeds]
        if not found or len(set(found)) < len(found):
            raise ValueError(f"seeds must be a list of different numbers, got {list(seeds)!r}")
        return found
    return list(range(check_count(seeds, "seeds", least=1)))


def _check_call(by: Any, tol: Any, confidence: Any, iterate: Any) -> None:
    for name, value, known in (("by", by, BY), ("iterate", iterate, ITERATES)):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
    check_nonnegative(tol, "tol")
    check_confidence(confidence)


def _check_subjects(
    targets: Sequence[Target],
    subjects: Mapping[str, Any],
    limits: Any,
    by: str,
    sampling: Sampling | None,
    iterate: str,
) -> None:
    for target in targets:
        subject = subjects[target.name]
        if target.family and not isinstance(subject, (CMDP, Simulator)):
            raise TypeError(f"{target.name}(seed) returned a {type(subject).__name__}, not a CMDP or a Simulator")
        if by == "samples" and isinstance(subject, CMDP) and sampling is None:
            raise ValueError(
                f"{target.name} is solved exactly, without samples; pass sampling=, or compare by iterations"
            )
        if iterate == "average" and not isinstance(subject, CMDP):
            raise ValueError(f"iterate='average' needs a CMDP, which {target.name} is not")
    environments = [t.name for t in targets if not isinstance(subjects[t.name], (CMDP, Simulator))]
    if environments and limits is None:
        raise ValueError(f"{environments[0]} is an environment: give limits=, one limit per cost (or [])")
    if limits is not None and not environments:
        raise ValueError("limits= is for environments; models and simulators have limits of their own")
    if environments and by == "evaluations":
        raise ValueError("policies are not evaluated in environments; compare by samples, iterations or seconds")


def _check_methods(
    entrants: Sequence[Entrant],
    subjects: Mapping[str, Any],
    by: str,
    sampling: Sampling | None,
    limits: Sequence[float] | None,
    shared: Mapping[str, Any],
) -> None:
    """Refuse unknown methods and options before the first run."""
    exact = [e.label for e in entrants if isinstance(e.method, str) and e.method in EXACT]
    if by == "evaluations" and exact:
        raise ValueError(f"evaluations of {exact[0]!r} are not counted; compare by iterations or seconds")
    for name, subject in subjects.items():
        for entrant in entrants:
            check_method(entrant.method, name, subject, sampling, limits, {**shared, **entrant.options})


def check_method(
    method: Any,
    name: str,
    subject: Any,
    sampling: Sampling | None,
    limits: Sequence[float] | None,
    options: Mapping[str, Any],
) -> None:
    """Refuse a method that does not run on the subject, and options that it does not take."""
    learner, constraints = "neural", len(limits or ())
    if isinstance(subject, (CMDP, Simulator)):
        learner = "sampled" if is_random(subject, sampling) else "exact"
        constraints = subject.num_constraints
    if isinstance(method, str) and method in (*EXACT, ZERO):
        if learner != "exact":
            raise ValueError(f"method {method!r} needs a model, and does not learn on {name}")
        return
    if learner == "exact":
        check_name(method)
    facade = train if learner == "neural" else solve
    own = {key: value for key, value in options.items() if key not in inspect.signature(facade).parameters}
    choose(method, own, learner, NeuralSettings if learner == "neural" else TabularSettings, constraints)
