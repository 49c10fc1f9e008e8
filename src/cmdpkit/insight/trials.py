"""One run of one method, measured: against the certified optimum of a model, otherwise by reward and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation import evaluate
from cmdpkit.insight.league import Run
from cmdpkit.model import CMDP, AtMost
from cmdpkit.options import options_of
from cmdpkit.run.result import Result
from cmdpkit.run.status import Status
from cmdpkit.settings import NeuralSettings, Sampling
from cmdpkit.simulators import Simulator
from cmdpkit.solver import solve
from cmdpkit.training import train

REFERENCE_TOL = 1e-10
"""To which the optimum is proved that errors are measured against, where double precision allows it."""
EVALUATED = 200
"""Iterates of a sampled run whose exact values are computed."""

TRAINED = "trained"
"""Status of a training run that made all its iterations."""


class ModelTrial:
    """Runs on a `CMDP`, exact or from samples; errors are those of the true values."""

    def __init__(self, name: str, cmdp: CMDP, iterate: str, time_limit: float | None) -> None:
        self.name, self.cmdp, self.iterate = name, cmdp, iterate
        self.possible: dict[int, tuple[float, float]] = {}
        self.constraints: list[Any] = list(cmdp.constraints)
        self.maximise = cmdp.maximise
        certified = solve(cmdp, tol=REFERENCE_TOL, time_limit=time_limit)
        if certified.certificate.infeasibility is not None:
            raise ValueError(f"the limits of {name} cannot be met, so that there is no optimum to compare with")
        self.optimum, self.accuracy = certified.objective, float(certified.certificate.gap)

    def errors(self, objective: Any, values: Any) -> tuple[Any, Any]:
        """Relative gap and largest relative violation, as `tol` of `solve` bounds them."""
        gap = np.abs(np.asarray(objective) - self.optimum) / max(1.0, abs(self.optimum))
        low, high = np.array([c.ends for c in self.constraints]).reshape(-1, 2).T
        scales = [np.where(np.isfinite(end), np.maximum(1.0, np.abs(end)), 1.0) for end in (low, high)]
        worst = np.maximum((low - values) / scales[0], (values - high) / scales[1])
        return gap, worst.max(axis=-1, initial=0.0)

    def run(self, label: str, method: Any, seed: int, options: Mapping[str, Any]) -> Run:
        result = solve(self.cmdp, method, seed=seed, **options)
        axes, objective, values = self._exact(result) if result.samples is None else self._sampled(result)
        if values is None:  # exact methods record how far their policy is from the limits, not its values
            values = np.full((len(objective), len(self.constraints)), np.nan)
            gap, violation = self.errors(objective, values)[0], result.history["violation"]
        else:
            gap, violation = self.errors(objective, values)
        ended = result.objective, result.constraint_values
        if self.iterate == "average" and result.average_policy is not None:
            average = evaluate(self.cmdp, result.average_policy)
            ended = float(average.objective), average.constraint_values
        final = tuple(float(x) for x in self.errors(*ended))
        return Run(
            model=self.name,
            method=label,
            seed=seed,
            status=result.status.value,
            axes=axes,
            objective=objective,
            values=values,
            gap=np.nan_to_num(gap, nan=np.inf),
            violation=violation,
            final=(final[0], final[1]),
            ended=ended,
            seconds=result.time,
            random=result.samples is not None,
        )

    def _exact(self, result: Result) -> tuple[dict[str, Array], Array, Array | None]:
        history = result.history
        prefix = "average_" if self.iterate == "average" else ""
        axes: dict[str, Any] = {"iterations": np.arange(1, len(history) + 1), "seconds": history["time"]}
        if "inner_steps" not in history:
            if len(history) == 1:
                axes["iterations"] = np.array([result.iterations])
            return axes, history["objective"], None
        axes["evaluations"] = np.cumsum(history["inner_steps"])
        return axes, history[f"{prefix}objective"], history[f"{prefix}constraint_values"]

    def _sampled(self, result: Result) -> tuple[dict[str, Array], Array, Array]:
        """The exact values of iterates that were learned from estimates."""
        policies = result.average_policy.policies
        count = len(result.history)
        rows = np.arange(count)
        if self.iterate == "last" and count > EVALUATED:
            rows = np.unique(np.append(np.geomspace(1, count, EVALUATED).astype(int) - 1, count - 1))
        exact = [evaluate(self.cmdp, policies[k]) for k in rows] if count else []
        objective = np.array([e.objective for e in exact])
        values = np.array([e.constraint_values for e in exact]).reshape(len(rows), len(self.constraints))
        if self.iterate == "average":
            k = np.arange(1, count + 1)
            objective, values = np.cumsum(objective) / k, np.cumsum(values, axis=0) / k[:, None]
        return sampled_axes(result.history, rows), objective, values


class SimulatorTrial:
    """Runs on a `Simulator`: its estimates along the run, and what fresh rollouts say at the end."""

    def __init__(self, name: str, simulator: Simulator) -> None:
        self.name, self.simulator = name, simulator
        self.possible: dict[int, tuple[float, float]] = {}
        self.constraints: list[Any] = list(simulator.constraints)
        self.maximise = simulator.maximise

    def run(self, label: str, method: Any, seed: int, options: Mapping[str, Any]) -> Run:
        rest = {name: value for name, value in options.items() if name != "tol"}
        result = solve(self.simulator, method, seed=seed, **rest)
        return valued(self.name, label, seed, result, result.status.value)


class EnvironmentTrial:
    """Training runs on an environment: reward and costs of the episodes of every iteration."""

    maximise = True

    def __init__(self, name: str, env: Any, limits: Sequence[float], options: Mapping[str, Any]) -> None:
        self.name, self.env, self.limits = name, env, list(limits)
        self.constraints: list[Any] = [AtMost(None, x, name=f"cost {i + 1}") for i, x in enumerate(self.limits)]
        self.possible = _possible(env, options)

    def run(self, label: str, method: Any, seed: int, options: Mapping[str, Any]) -> Run:
        rest = {name: value for name, value in options.items() if name not in ("tol", "sampling", "max_iterations")}
        if options.get("max_iterations") is not None:
            rest["iterations"] = options["max_iterations"]
        result = train(self.env, method, self.limits, seed=seed, **rest)
        done = result.status is Status.ITERATION_LIMIT
        return valued(self.name, label, seed, result, TRAINED if done else result.status.value)


def valued(name: str, label: str, seed: int, result: Any, status: str) -> Run:
    """A run of which objective and values are known, and no optimum."""
    history = result.history
    return Run(
        model=name,
        method=label,
        seed=seed,
        status=status,
        axes=sampled_axes(history, np.arange(len(history))),
        objective=history["objective"],
        values=history["constraint_values"],
        gap=None,
        violation=None,
        final=None,
        ended=(result.objective, result.constraint_values),
        seconds=result.time,
        random=True,
    )


def sampled_axes(history: Any, rows: Any) -> dict[str, Array]:
    axes = {"iterations": rows + 1, "seconds": history["time"][rows], "samples": history["samples"][rows]}
    if "inner_steps" in history:
        axes["evaluations"] = np.cumsum(history["inner_steps"])[rows]
    return axes


def _possible(env: Any, options: Mapping[str, Any]) -> dict[int, tuple[float, float]]:
    """Bounds on the sums of an episode, if the environment declares what a step can give."""
    from cmdpkit.envs.batch import as_batch

    known = getattr(as_batch(env, 1), "metadata", {}).get("bounds")
    if known is None or options.get("measure", "episode") != "episode":
        return {}
    steps = options.get("steps", options_of(NeuralSettings)["steps"].default)
    return {i: (min(0.0, low * steps), max(0.0, high * steps)) for i, (low, high) in enumerate(known)}


def trial(
    name: str, subject: Any, limits: Sequence[float] | None, iterate: str, options: Mapping[str, Any]
) -> ModelTrial | SimulatorTrial | EnvironmentTrial:
    if isinstance(subject, CMDP):
        return ModelTrial(name, subject, iterate, options.get("time_limit"))
    if isinstance(subject, Simulator):
        return SimulatorTrial(name, subject)
    return EnvironmentTrial(name, subject, limits or (), options)


def is_random(subject: Any, sampling: Sampling | None) -> bool:
    """Whether runs on it depend on the seed."""
    return sampling is not None or not isinstance(subject, CMDP)
