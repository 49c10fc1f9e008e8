"""`train()`: neural policies on constrained environments, with a log, checkpoints and a live display."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cmdpkit.budget import Budget
from cmdpkit.checkpoint import Checkpoint
from cmdpkit.checks import Array, as_floats, check_count, check_number
from cmdpkit.files import PathLike, load_tensors, save_tensors, write_csv, write_json
from cmdpkit.primal_dual import primal_dual
from cmdpkit.result import History, Status
from cmdpkit.rules import CRPO, NPGPD, PMDPD, Rule
from cmdpkit.training_result import Row, TrainingFailed, TrainingResult

if TYPE_CHECKING:
    from cmdpkit.learners.neural import NeuralLearner

METHODS = ("pmd-pd", "npg-pd", "crpo")
LEARNER_OPTIONS = (
    *("num_envs", "steps", "gamma", "smoothing", "hidden", "radius", "damping", "cg_steps", "line_search"),
    *("inner_steps", "alpha", "normalise", "critic_rate", "critic_epochs", "critic_minibatch"),
)
RULE_OPTIONS = {"pmd-pd": ("eta_dual",), "npg-pd": ("eta_dual", "dual_cap"), "crpo": ("tolerance", "first", "radii")}
DEFAULTS: dict[str, dict[str, Any]] = {
    "pmd-pd": {"inner_steps": 2},
    "npg-pd": {},
    "crpo": {},
}
ETA_DUAL = 5e-4
NEURAL = "pip install 'cmdpkit[neural]', or in a clone of it .venv/bin/pip install -c constraints.txt -e '.[neural]'"


Watch = Callable[[Row, int], Any]


def train(
    env: Any,
    method: str = "pmd-pd",
    limits: Sequence[float] = (),
    *,
    measure: str = "episode",
    seed: int = 0,
    iterations: int = 400,
    time_limit: float | None = None,
    out: PathLike | None = None,
    resume: bool = False,
    tensorboard: bool = False,
    progress: bool = False,
    callback: Watch | None = None,
    **options: Any,
) -> TrainingResult:
    """Train a neural policy to earn reward within limits on costs.

    Args:
        env: a registered name, a function that makes an environment, or a vector environment; the costs are in
            `info["cost"]` or `info["costs"]` (`cmdpkit.envs.WithCosts` adds them).
        method: "pmd-pd", "npg-pd" or "crpo".
        limits: one for every cost.
        measure: what a limit bounds: "episode", the sum over an episode of at most `steps` steps, as in the paper;
            "discounted", the discounted sum; "step", the average per step.
        seed: of everything random: the same seed gives the same result.
        iterations: policy iterations, of `num_envs` times `steps` steps of the environment each; a dual update that has
            begun is finished, so that with `inner_steps` 2 an odd number is rounded up.
        time_limit: seconds.
        out: a folder for the log (CSV), the policy, and checkpoints.
        resume: continue the run in `out` from its checkpoint, to the same result as if it had never stopped.
        tensorboard: also write TensorBoard's files to `out`.
        progress: a live display on stderr.
        callback: called after every iteration with a `Row` and its number; the run stops when it returns True.
        **options: of the learner (`NeuralLearner` explains them): num_envs, steps, gamma, smoothing, hidden, radius,
            damping, cg_steps, line_search, inner_steps, alpha, normalise, critic_rate, critic_epochs,
            critic_minibatch. Of the methods: eta_dual (pmd-pd, npg-pd), dual_cap (npg-pd), tolerance, first, radii
            (crpo: radius of the trust region with 0, 1, 2, ... limits violated).

    Example:
        >>> import cmdpkit as ck
        >>> result = ck.train("cmdpkit/ConstrainedAcrobot-v0", limits=[50, 50], iterations=2, hidden=[16], steps=50)
        >>> result.history["costs"].shape
        (2, 2)
    """
    rule, settings = _rule(method, options, limits, iterations, seed, time_limit)
    try:
        import safetensors  # noqa: F401 - for checkpoints
        import torch

        from cmdpkit.learners.neural import NeuralLearner
    except ImportError as error:
        raise ImportError(f"training needs PyTorch, Gymnasium and safetensors: {NEURAL}") from error
    threads = torch.get_num_threads()
    learner = NeuralLearner(env, limits, measure, int(seed), **settings)  # which uses one thread
    identity = {"env": _name(env), "method": method, "limits": learner.limits.tolist(), "measure": measure}
    identity |= {"seed": int(seed), "options": {n: _plain(v) for n, v in sorted(options.items())}}
    run = _Run(learner, method, identity, out, resume, tensorboard)
    with _display(progress, learner, method, iterations, callback) as watch:
        budget = Budget(time_limit=time_limit)
        budget.started -= run.rows[-1].time if run.rows else 0.0
        try:
            with budget.catching_ctrl_c():
                return run.go(rule, iterations, budget, watch)
        finally:
            torch.set_num_threads(threads)


class _Run:
    """A run with its log and checkpoints."""

    def __init__(
        self,
        learner: NeuralLearner,
        method: str,
        identity: dict[str, Any],
        out: PathLike | None,
        resume: bool,
        tensorboard: bool,
    ) -> None:
        self.learner, self.method = learner, method
        self.rows: list[Row] = []
        self.lam: Array = np.zeros(learner.limits.size)  # the paper's experiment begins with λ = 0
        self.folder = _folder(out, resume, tensorboard)
        path = None if self.folder is None else self.folder / "checkpoint.safetensors"
        self.store = Checkpoint(path, identity, save_tensors, load_tensors)
        saved = self.store.load() if resume else None
        if saved is not None:
            self._restore(saved)
        elif self.folder is not None:
            write_json(self.folder / "run.json", identity)
        self.board = _board(self.folder, len(self.rows)) if tensorboard else None

    def go(self, rule: Rule, iterations: int, budget: Budget, watch: Watch | None) -> TrainingResult:
        learner = self.learner
        iterates = primal_dual(learner, rule, self.lam)
        mark = self._mark()
        status = None
        try:
            while status is None and len(self.rows) < iterations:
                iterate = next(iterates)
                for update in learner.updates:
                    row = Row(
                        reward=-update.objective,
                        costs=update.values + learner.limits,
                        multipliers=self.lam,
                        divergence=update.divergence,
                        explained=update.fit,
                        verdict=update.verdict,
                        steps=update.iteration * learner.steps * learner.envs.num_envs,
                        time=update.finished - budget.started,
                    )
                    self.rows.append(row)
                    self._tell(row, watch, budget)
                self.lam = iterate.multipliers
                mark = self._mark()
                self.store.save_when_due(partial(self._write, mark))
                status = budget.spent(0)
        except Exception as error:
            # Back to the end of the last macro step, so that policy and history belong together.
            learner.restore(mark)
            del self.rows[mark["rows"] :]
            self.store.save(partial(self._write, mark))
            result = self._result(Status.INTERRUPTED, budget.elapsed)
            kept = f"; {result.iterations} iterations are safe" + (f" in {self.folder}" if self.folder else "")
            raise TrainingFailed(f"{error}{kept if result.iterations else ''}", result) from error
        self.store.save(partial(self._write, mark))
        return self._result(status or Status.ITERATION_LIMIT, budget.elapsed)

    def _tell(self, row: Row, watch: Watch | None, budget: Budget) -> None:
        number = len(self.rows)
        if self.board is not None:
            self.board.add_scalar("reward", row.reward, number)
            for i in range(row.costs.size):
                self.board.add_scalar(f"cost/{i + 1}", row.costs[i], number)
                self.board.add_scalar(f"multiplier/{i + 1}", row.multipliers[i], number)
            self.board.add_scalar("divergence", row.divergence, number)
        if watch is not None and isinstance(stop := watch(row, number), (bool, np.bool_)) and stop:
            budget.interrupted = True

    def _result(self, status: Status, elapsed: float) -> TrainingResult:
        learner = self.learner
        result = TrainingResult(
            status=status,
            policy=learner.policy,
            multipliers=self.lam,
            history=self.history(),
            verdicts=dict(learner.verdicts),
            limits=learner.limits,
            measure=learner.measure,
            method=self.method,
            iterations=len(self.rows),
            steps=learner.iteration * learner.steps * learner.envs.num_envs,
            time=elapsed,
            folder=self.folder,
        )
        if self.folder is not None and self.rows:
            result.policy.save(self.folder / "policy.npz")
            write_json(self.folder / "result.json", result.to_dict())
        if self.board is not None:
            self.board.flush()
        return result

    def history(self) -> History:
        m = self.learner.limits.size
        columns = dict(zip(Row._fields, zip(*self.rows, strict=True), strict=True)) if self.rows else {}
        widths = {"costs": (m,), "multipliers": (m,), "explained": (m + 1,)}
        kinds = {"verdict": str, "steps": np.int64}
        return History(
            {
                name: np.array(columns.get(name, ()), dtype=kinds.get(name, float)).reshape(
                    len(self.rows), *widths.get(name, ())
                )
                for name in Row._fields
            }
        )

    # -- files ------------------------------------------------------------------------------------------------------

    def _mark(self) -> dict[str, Any]:
        """The learner at the end of a macro step, in arrays that nobody writes into, and how many rows there were."""
        return self.learner.state() | {"lam": self.lam, "rows": len(self.rows)}

    def _write(self, mark: dict[str, Any]) -> dict[str, Any]:
        """What a checkpoint holds; the log is written beside it."""
        count = mark["rows"]
        if not count or self.folder is None:
            return {}
        history = self.history()
        _write_log(self.folder / "log.csv", history)
        self.learner.policy.save(self.folder / "policy.npz")
        columns = {f"row_{name}": history[name][:count] for name in Row._fields if name != "verdict"}
        return mark | columns | {"row_verdict": [str(v) for v in history["verdict"][:count]]}

    def _restore(self, saved: dict[str, Any]) -> None:
        try:
            self.learner.restore(saved)
            self.lam = np.array(saved["lam"])
            columns = [saved[f"row_{name}"] for name in Row._fields]
        except KeyError as error:
            raise ValueError(f"{self.store.path} is damaged: the entry {error} is missing") from error
        for reward, costs, lam, divergence, explained, verdict, steps, time in zip(*columns, strict=True):
            row = (float(reward), costs, lam, float(divergence), explained, str(verdict), int(steps), float(time))
            self.rows.append(Row(*row))


def _rule(
    method: Any, options: dict[str, Any], limits: Any, iterations: Any, seed: Any, time_limit: Any
) -> tuple[Rule, dict[str, Any]]:
    """The rule, and the learner's settings; everything wrong is refused here or by the learner, before any work."""
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; choose one of {', '.join(METHODS)}")
    taken = (*RULE_OPTIONS[method], *LEARNER_OPTIONS)
    unknown = [name for name in options if name not in taken]
    if unknown:
        raise ValueError(f"unknown option {unknown[0]!r} for method {method!r}; it takes {', '.join(taken)}")
    check_count(iterations, "iterations", least=0)
    check_count(seed, "seed", least=0)
    if time_limit is not None and check_number(time_limit, "time_limit") < 0.0:
        raise ValueError(f"time_limit must not be negative, got {time_limit}")
    if as_floats(limits, "limits").ndim != 1:
        raise ValueError(f"limits must be a list with one number for every cost, got {limits!r}")
    settings = {**DEFAULTS[method], **{n: v for n, v in options.items() if n in LEARNER_OPTIONS}}
    eta_dual = as_floats(options.get("eta_dual", ETA_DUAL), "eta_dual")
    if not np.isfinite(eta_dual).all() or (eta_dual <= 0.0).any() or eta_dual.shape not in ((), (len(limits),)):
        raise ValueError(f"eta_dual must be positive, one number or one for every cost, got {options['eta_dual']}")
    if method == "pmd-pd":
        return PMDPD(eta_dual), settings
    if method == "npg-pd":
        cap = options.get("dual_cap", np.inf)
        if isinstance(cap, bool) or not isinstance(cap, (int, float, np.integer, np.floating)) or not cap >= 0.0:
            raise ValueError(f"dual_cap must be a number that is not negative (infinity is allowed), got {cap!r}")
        return NPGPD(eta_dual, float(cap)), settings
    tolerance, first = check_number(options.get("tolerance", 0.0), "tolerance"), options.get("first", False)
    if not isinstance(first, (bool, np.bool_)):
        raise ValueError(f"first must be True or False, got {first!r}")
    if options.get("radii") is None:
        return CRPO(tolerance, bool(first)), settings
    radii = as_floats(options["radii"], "radii")
    if radii.ndim != 1 or not radii.size or not np.isfinite(radii).all() or (radii <= 0.0).any():
        raise ValueError(f"radii must be a list of positive numbers, got {options['radii']}")
    return CRPO(tolerance, bool(first), tuple(radii.tolist())), settings


def _folder(out: PathLike | None, resume: bool, tensorboard: bool) -> Path | None:
    if out is None:
        if resume or tensorboard:
            raise ValueError(f"{'resume' if resume else 'tensorboard'} needs out, the folder of the run")
        return None
    folder = Path(out)
    if resume and not (folder / "checkpoint.safetensors").exists() and not (folder / "run.json").exists():
        raise FileNotFoundError(f"there is no run in {folder} to resume")
    if not resume and (folder / "checkpoint.safetensors").exists():
        raise FileExistsError(f"{folder} holds a run already; resume it, or choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _board(folder: Path | None, rows: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("TensorBoard is not installed: pip install tensorboard") from error
    return SummaryWriter(str(folder), purge_step=rows + 1)


def _write_log(path: Path, history: History) -> None:
    """The history as a table: one row an iteration, a column for every number."""
    columns: dict[str, Any] = {"iteration": range(1, len(history) + 1)}
    for name in history.columns:
        table = history[name]
        columns |= {name: table} if table.ndim == 1 else {f"{name}_{i}": table[:, i] for i in range(table.shape[1])}
    write_csv(path, columns)


def _display(show: bool, learner: Any, method: str, iterations: int, callback: Watch | None) -> Any:
    import contextlib

    if not show:
        return contextlib.nullcontext(callback)
    from cmdpkit.report import training_display

    return training_display(learner.limits, learner.envs.num_envs * learner.steps, method, iterations, callback)


def _name(env: Any) -> str:
    if isinstance(env, str):
        return env
    if isinstance(env, partial):
        return f"{_name(env.func)}({env.args}, {sorted(env.keywords.items())})"
    named = env if hasattr(env, "__qualname__") else type(env)
    return f"python: {named.__module__}.{named.__qualname__}"


def _plain(value: Any) -> Any:
    return np.asarray(value).tolist()
