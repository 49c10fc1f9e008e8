"""The facade of the neural learner: `train()` learns a policy, `certify_on_episodes()` certifies it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cmdpkit.certificates.episodes import judge_on_episodes
from cmdpkit.certificates.rollouts import SimulationCertificate
from cmdpkit.checks import check_cost_limits, check_count, required_arguments
from cmdpkit.cluster import check_cluster, using
from cmdpkit.files import PathLike, write_json
from cmdpkit.primal_dual import Iterate
from cmdpkit.rules.base import Rule
from cmdpkit.run.budget import Budget, Callback, Snapshot, check_run
from cmdpkit.run.checkpoint import Checkpoint
from cmdpkit.run.choice import Choice, choose
from cmdpkit.run.driver import Run
from cmdpkit.run.result import TrainingFailed, TrainingResult, recent
from cmdpkit.run.status import Status
from cmdpkit.run.training_folder import (
    IDENTITY,
    NUMBERS,
    check_run_folder,
    checkpoint_in,
    write_progress,
    write_result,
)
from cmdpkit.run.training_recorder import TrainingRecorder
from cmdpkit.settings import NeuralSettings

if TYPE_CHECKING:
    from cmdpkit.learners.neural.learner import NeuralLearner

NEURAL = "pip install 'cmdpkit[neural]', or in a clone of it .venv/bin/pip install -c constraints.txt -e '.[neural]'"

TRAINED = "All iterations are done. Use certify_on_episodes to certify the policy on fresh episodes."


def train(
    env: Any,
    method: str | Rule = "pmd-pd",
    limits: Sequence[float] = (),
    *,
    measure: str = "episode",
    seed: int = 0,
    iterations: int = 400,
    time_limit: float | None = None,
    out: PathLike | None = None,
    resume: bool | None = None,
    tensorboard: bool = False,
    progress: bool = False,
    callback: Callable[..., Any] | None = None,
    cluster: str | None = None,
    workers: int | None = None,
    **options: Any,
) -> TrainingResult:
    """Train a neural policy to maximise reward subject to limits on costs.

    Args:
        env: a registered name, a function that makes an environment, or a vector environment; the costs are in
            `info["cost"]` or `info["costs"]` (`cmdpkit.envs.WithCosts` adds them).
        method: a registered method, such as "pmd-pd", "npg-pd" or "crpo" (docs/methods.md lists them with their
            options), or an instance of a rule, as in `cmdpkit.rules.CRPO(first=True)`, also of a class of your own.
        limits: one limit per cost. `float("inf")` only records a cost: every cost that is reported needs a limit. An
            environment that reports none needs none.
        measure: what a limit bounds: "episode", the sum over an episode of at most `steps` steps, as in the paper;
            "discounted", the discounted sum; "step", the average per step.
        seed: seed of all random numbers; the same seed gives the same result.
        iterations: policy iterations of `num_envs` times `steps` environment steps each. A dual update that has begun
            is completed: with `inner_steps` 2, an odd number is rounded up.
        time_limit: seconds.
        out: a folder for the log (CSV), the policy, and checkpoints. If it holds a checkpoint of the same run, the run
            continues from it, to the same result as without interruption.
        resume: True requires a run to continue, False requires that there is none; None continues if there is one.
        tensorboard: also write TensorBoard event files to `out`.
        progress: show a live display on stderr.
        callback: called after every iteration with a `Snapshot`; the run stops when it returns True.
        cluster: "local", "auto" or the address of a Ray cluster on whose workers the environments run, with the same
            result; see docs/cluster.md. `env` must then be a name or a function.
        workers: processes of this machine in which the environments run, with the same result. Worth it where a step of
            the environment takes long and there are cores; `env` must then be a name or a function.
        **options: options of the method, and of the learner: the fields of `NeuralSettings` (num_envs, steps, gamma,
            radius, hidden, ...). docs/methods.md lists all of them.

    Example:
        >>> import cmdpkit as ck
        >>> result = ck.train("cmdpkit/ConstrainedAcrobot-v0", limits=[50, 50], iterations=2, hidden=[16], steps=50)
        >>> result.history["constraint_values"].shape
        (2, 2)
    """
    count = _check_call(limits, iterations, seed, time_limit, callback)
    workers = None if workers is None else check_count(workers, "workers", least=1)
    choice = choose(method, options, "neural", NeuralSettings, count)
    choice.settings.refuse_unused(choice.given)
    folder = check_run_folder(out, resume, tensorboard)
    try:
        import safetensors  # noqa: F401 - for checkpoints
        import torch

        from cmdpkit.envs.numbers import numbers_of
        from cmdpkit.learners.neural.learner import NeuralLearner
    except ImportError as error:
        raise ImportError(f"training needs PyTorch, Gymnasium and safetensors: {NEURAL}") from error
    with using(check_cluster(cluster)), _threads_kept(torch):
        learner = NeuralLearner(env, limits, measure, int(seed), choice.settings, workers)  # sets PyTorch to one thread
        identity = {"env": _name(env), "limits": learner.limits.tolist(), "measure": measure, "seed": int(seed)}
        if folder is not None:  # two functions that make environments may have the same name
            identity |= {"environment": learner.fingerprint(), NUMBERS: numbers_of(env)}
        store = checkpoint_in(folder, identity | choice.identity())
        with _display(progress, learner, choice, iterations, _with_one_argument(callback)) as watch:
            budget = Budget(int(iterations), time_limit, watch)
            with budget.catching_ctrl_c():
                return _train(learner, choice, budget, store, folder, tensorboard)


@contextlib.contextmanager
def _threads_kept(torch: Any) -> Iterator[None]:
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _train(
    learner: NeuralLearner,
    choice: Choice,
    budget: Budget,
    store: Checkpoint,
    folder: Path | None,
    tensorboard: bool,
) -> TrainingResult:
    recorder = TrainingRecorder(learner, budget)
    # The paper's experiment starts with λ = 0
    zero = np.zeros(int(learner.limited.sum())) if choice.method.multipliers else None
    run = Run(learner, choice.rule, recorder, budget, [], zero, store)
    if folder is not None and not run.steps:
        write_json(folder / IDENTITY, store.run)
    board = _board(folder, run.iterations) if tensorboard else None

    def tell(iterate: Iterate) -> None:
        """Report every policy iteration of a macro step, in order."""
        for news in recorder.news():
            if board is not None:
                _draw(board, news)
            budget.tell(news)
        if folder is not None and store.is_due:
            write_progress(folder, recorder.history(), learner.policy)

    run.observers = [tell]
    result = partial(_result, learner, choice, recorder, budget, folder)
    try:
        status = run.go()
    except Exception as error:
        kept = result(Status.INTERRUPTED)
        where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        safe = f"; {kept.iterations} iterations are safe" + (f" in {folder}" if folder else "")
        raise TrainingFailed(f"{error}{where}{safe if kept.iterations else ''}", kept) from error
    finally:
        if board is not None:
            board.flush()
    return result(status)


def _result(
    learner: NeuralLearner,
    choice: Choice,
    recorder: TrainingRecorder,
    budget: Budget,
    folder: Path | None,
    status: Status,
) -> TrainingResult:
    history, rows = recorder.history(), len(recorder.rows)
    objective, values = recent(history) if rows else (float("nan"), np.full(learner.limits.size, np.nan))
    result = TrainingResult(
        status=status,
        policy=learner.policy,
        best_policy=learner.best_policy,
        best=None if learner.best is None else learner.best.evidence,
        objective=objective,
        constraint_values=values,
        violations=np.maximum(values - learner.limits, 0.0),
        multipliers=recorder.multipliers,
        history=history,
        verdicts=dict(learner.verdicts),
        limits=learner.limits,
        measure=learner.measure,
        method=choice.name,
        message=TRAINED if status is Status.ITERATION_LIMIT else f"Stopped early ({status.value}).",
        iterations=rows,
        samples=learner.environment_steps,
        time=budget.elapsed,
        folder=folder,
    )
    if folder is not None and rows:
        write_result(folder, result)
    return result


def certify_on_episodes(
    env: Any,
    policy: Any,
    limits: Sequence[float],
    measure: str = "episode",
    confidence: float = 0.95,
    episodes: int = 1_000,
    steps: int = 1_000,
    gamma: float = 0.99,
    bounds: Sequence[tuple[float, float]] | None = None,
    num_envs: int = 16,
    seed: int = 0,
    progress: bool = False,
    deterministic: bool = False,
    cluster: str | None = None,
) -> SimulationCertificate:
    """Estimate reward and costs on fresh episodes, with confidence intervals and a verdict on every limit.

    Args:
        env: as for `train`.
        policy: a `NeuralPolicy`.
        limits, measure: as for `train`.
        confidence: all intervals hold simultaneously with at least this probability.
        episodes: number of episodes, of at most `steps` steps each.
        steps, gamma: maximum length of an episode, and discount factor of the measure "discounted".
        bounds: (low, high) of the reward and of each cost in one step. With them (or with `metadata["bounds"]` of the
            environment) the intervals are empirical Bernstein intervals, valid for any number of episodes. Without
            them they are Student's, which assume nearly normal means (`certificate.assumption` says so).
        num_envs: environments stepped together. Many more may be slow on a busy machine, because BLAS starts threads.
        seed: seed of the episodes.
        progress: show a progress bar on stderr, on a terminal.
        deterministic: certify the most likely actions instead of drawn ones. Training draws them: the two may differ
            widely, and a verdict on one says nothing about the other (`certificate.deterministic` says which it is).
        cluster: as for `train`.
    """
    settings = (limits, measure, confidence, episodes, steps, gamma, bounds, num_envs, seed, deterministic)
    with using(check_cluster(cluster)):
        if not progress:
            return judge_on_episodes(env, policy, *settings)
        from cmdpkit.report import tracker

        with tracker() as track:
            return judge_on_episodes(env, policy, *settings, track=lambda batches: track(batches, "episodes"))


def _check_call(limits: Any, iterations: Any, seed: Any, time_limit: Any, callback: Any) -> int:
    check_count(iterations, "iterations", least=0)
    check_run(time_limit, seed, callback)
    return int(np.isfinite(check_cost_limits(limits)).sum())


def _board(folder: Path | None, rows: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("TensorBoard is not installed: pip install tensorboard") from error
    return SummaryWriter(str(folder), purge_step=rows + 1)


def _draw(board: Any, news: Snapshot) -> None:
    assert news.constraint_values is not None
    board.add_scalar("reward", news.objective, news.iteration)
    for i in range(news.constraint_values.size):
        board.add_scalar(f"cost/{i + 1}", news.constraint_values[i], news.iteration)
        board.add_scalar(f"multiplier/{i + 1}", news.multipliers[i], news.iteration)
    board.add_scalar("divergence", news.divergence, news.iteration)


def _with_one_argument(callback: Callable[..., Any] | None) -> Callback | None:
    """Older callbacks take a row and its number; they are still called with both."""
    if callback is None or (required_arguments(callback) or 0) < 2:
        return callback
    return lambda news: callback(news, news.iteration)


@contextlib.contextmanager
def _display(
    show: bool, learner: NeuralLearner, choice: Choice, iterations: int, callback: Callback | None
) -> Iterator[Callback | None]:
    if not show:
        yield callback
        return
    from cmdpkit.report import training_display

    steps_each = learner.envs.num_envs * learner.steps
    with training_display(learner.limits, steps_each, choice.name, iterations, callback) as watch:
        yield watch


def _name(env: Any) -> str:
    if isinstance(env, str):
        return env
    if isinstance(env, partial):
        return f"{_name(env.func)}({env.args}, {sorted(env.keywords.items())})"
    named = env if hasattr(env, "__qualname__") else type(env)
    return f"python: {named.__module__}.{named.__qualname__}"
