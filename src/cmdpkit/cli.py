"""The command line: parses, calls, shows. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cmdpkit import __version__

if TYPE_CHECKING:
    from cmdpkit.model import CMDP
    from cmdpkit.result import Status

Command = TypeVar("Command", bound=Callable[..., Any])

DONE, LIMIT_REACHED, BAD_INPUT, INFEASIBLE = 0, 1, 2, 3
METHODS = (
    *("auto", "pmd-pd", "pmd-pd-zero", "npg-pd", "crpo", "columns", "lp"),
    *("npg", "pg", "npg-entropy", "pg-entropy"),
)
SET = click.option(
    "--set", "parameters", multiple=True, metavar="KEY=VALUE", help="A parameter of a built-in problem, e.g. gamma=0.9."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines instead of tables.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cmdpkit")
def cli() -> None:
    """Constrained Markov decision processes, solved with a proof.

    Exit codes: 0 optimal or done, 1 a limit was reached (or the run was stopped), 2 bad input, 3 infeasible.
    """


@cli.command(short_help="Solve a model and prove the answer.")
@click.argument("model")
@click.option(
    "--method",
    default="auto",
    show_default=True,
    type=click.Choice(METHODS),
    metavar="METHOD",
    help=f"How to solve it: {', '.join(METHODS)}.",
)
@click.option("--tol", default=1e-6, show_default=True, help="Relative gap and violation to prove.")
@click.option("--max-iterations", type=int, help="Macro steps, or oracle calls of auto and columns.")
@click.option("--time-limit", type=float, metavar="SECONDS", help="Stop after this long, with the best policy so far.")
@click.option("--step", type=float, help="First-order methods: the policy is multiplied by exp(-step * Q).")
@click.option("--eta-dual", type=float, help="pmd-pd, npg-pd: the dual step.")
@click.option("--inner-steps", type=int, help="First-order methods: policy steps for each dual update.")
@click.option("--alpha", type=float, help="First-order methods: weight of the KL divergence to the anchor policy.")
@click.option("--dual-cap", type=float, help="npg-pd: largest multiplier.")
@click.option("--tolerance", type=float, help="crpo: a limit counts as violated while it is this close.")
@SET
@click.option("--schedule", type=click.Choice(["theory"]), help="pmd-pd, pmd-pd-zero: the parameters of the theorems.")
@click.option("--xi", type=float, help="pmd-pd-zero: the Slater margin, computed when it is not given.")
@click.option("--sample", is_flag=True, help="Learn from samples of the model alone: pmd-pd, npg-pd or crpo.")
@click.option("--rollouts", type=int, help="--sample: rollouts from every state-action pair in each step.")
@click.option("--value-rollouts", type=int, help="--sample: rollouts from the initial distribution in each step.")
@click.option("--horizon", type=int, help="--sample: steps of a rollout.")
@click.option("--estimator", type=click.Choice(["truncated", "geometric", "pooled"]), help="--sample: how to estimate.")
@click.option("--budget", type=int, metavar="TRANSITIONS", help="--sample: stop before more are drawn.")
@click.option(
    "--checkpoint",
    type=click.Path(dir_okay=False),
    help="--sample: keep the state of the run in this file, and continue from it.",
)
@click.option("--seed", type=int, help="--sample: of the random numbers.")
@click.option(
    "--out", type=click.Path(dir_okay=False), help="Save the policy here (.npz), the result beside it (.json)."
)
@JSON
def solve(
    model: str,
    method: str,
    tol: float,
    out: str | None,
    parameters: tuple[str, ...],
    as_json: bool,
    sample: bool,
    rollouts: int | None,
    value_rollouts: int | None,
    estimator: str | None,
    horizon: int | None,
    **settings: Any,
) -> None:
    """Solve MODEL: a file written by CMDP.save, or the name of a built-in problem."""
    from cmdpkit.report import result_report
    from cmdpkit.solver import solve as run

    settings = {name: value for name, value in settings.items() if value is not None}
    draws = {"rollouts": rollouts, "value_rollouts": value_rollouts, "estimator": estimator, "horizon": horizon}
    draws = {name: value for name, value in draws.items() if value is not None}
    alone = [*draws, *(name for name in ("budget", "checkpoint", "seed") if name in settings)]
    if alone and not sample:
        raise ValueError(f"--{alone[0].replace('_', '-')} belongs to learning from samples; add --sample")
    if sample:
        from cmdpkit.sampling import Sampling

        settings["sampling"] = Sampling(**draws)  # type: ignore[arg-type]
    from cmdpkit.files import check_folder

    if out is not None:
        check_folder(out)
        if Path(out).suffix == ".json":
            raise ValueError(f"--out {out} is where the policy goes (.npz); the result is written beside it as .json")
        for target in (Path(out), _beside(out)):
            if target.exists() and Path(model).exists() and target.samefile(model):
                raise ValueError(f"--out {out} would overwrite the model {model}; choose another name")
    result = run(_model(model, parameters), method, tol, progress=sys.stderr.isatty(), **settings)
    if out is not None:
        result.policy.save(out)
        result.save(_beside(out))
        if sample:
            result.average_policy.save(Path(out).with_suffix(".mixture.npz"))
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
    else:
        _print(result_report(result))
        if out is not None:
            click.echo(f"policy saved to {out}, result to {_beside(out)}")
    sys.exit(_exit_code(result.status))


@cli.command(short_help="Prove how good and how safe a policy is.")
@click.argument("model")
@click.argument("policy", type=click.Path(dir_okay=False))
@click.option("--tol", default=1e-6, show_default=True, help="What counts as optimal and feasible (exit code 0).")
@JSON
def certify(model: str, policy: str, tol: float, as_json: bool) -> None:
    """Prove how good and how safe POLICY (a file written by policy.save) is for MODEL."""
    from cmdpkit.certificate import certify as prove
    from cmdpkit.checks import check_number
    from cmdpkit.policy import load_policy
    from cmdpkit.report import certificate_report
    from cmdpkit.result import describe_constraints

    if check_number(tol, "tol") < 0.0:
        raise ValueError(f"tol must not be negative, got {tol}")
    cmdp = _model(model)
    certificate = prove(cmdp, load_policy(policy))
    optimal = certificate.optimal(tol)
    if as_json:
        summary = certificate.to_dict() | {
            "constraints": describe_constraints(
                cmdp, certificate.constraint_values, certificate.violations, certificate.multipliers
            )
        }
        summary |= {"feasible": certificate.feasible(tol), "optimal": optimal}
        click.echo(json.dumps(summary, indent=2))
    else:
        verdict = (
            "optimal"
            if optimal
            else "within the limits, not optimal"
            if certificate.feasible(tol)
            else "violates a limit"
        )
        if certificate.infeasibility is not None:
            verdict = "the limits cannot be met by any policy"
        click.echo(f"{verdict} (tolerance {tol:g})\n")
        _print(certificate_report(certificate, cmdp))
    sys.exit(INFEASIBLE if certificate.infeasibility is not None else DONE if optimal else LIMIT_REACHED)


@cli.command(short_help="List the built-in problems, or write one to a file.")
@click.argument("name", required=False)
@click.option("--out", type=click.Path(dir_okay=False), help="Write the model to this file (.npz).")
@SET
@JSON
def problems(name: str | None, out: str | None, parameters: tuple[str, ...], as_json: bool) -> None:
    """List the built-in problems; or describe one, or write it to a file."""

    if name is None:
        if out is not None or parameters:
            raise ValueError("say which problem to write: cmdpkit problems NAME --out FILE")
        _list_problems(as_json)
        return
    cmdp = _built_in(name, parameters)
    if out is not None:
        from cmdpkit.files import check_folder

        check_folder(out)
        cmdp.save(out)
    if as_json:
        click.echo(json.dumps({"name": name, "model": repr(cmdp), "file": out}))
    elif out is not None:
        click.echo(f"{cmdp!r} saved to {out}")
    else:
        _describe(name, cmdp)


@cli.command(short_help="Reproduce the paper's experiments.")
@click.argument("names", nargs=-1)
@click.option(
    "--out", default="out/results", show_default=True, type=click.Path(file_okay=False), help="Where to write."
)
@click.option("--seeds", default=30, show_default=True, help="How many random instances.")
@click.option("--quick", is_flag=True, help="A minute's run that only shows that everything works.")
def reproduce(names: tuple[str, ...], out: str, seeds: int, quick: bool) -> None:
    """Reproduce the paper's experiments: fig1, fig2, table1, zero, theory, fig3, complexity, or all of these.

    fig4, fig4-tuning (Acrobot with neural policies) and tasks (CartPole, Pendulum) take long, and run only by name.
    """
    from cmdpkit.experiments.reproduce import page_of, table
    from cmdpkit.experiments.reproduce import reproduce as run
    from cmdpkit.report import tracker

    with tracker() as track:
        sections = run(names, Path(out), seeds, quick, track)
    _print(table(sections))
    click.echo(f"data and figures are in {out}, the page with all verdicts is {page_of(Path(out))}")


@cli.command(short_help="Train a neural policy on a constrained environment.")
@click.argument("env")
@click.option("--method", default="pmd-pd", show_default=True, type=click.Choice(["pmd-pd", "npg-pd", "crpo"]))
@click.option("--limit", "limits", type=float, multiple=True, help="Limit of a cost; once for every cost, in order.")
@click.option(
    "--measure",
    default="episode",
    show_default=True,
    type=click.Choice(["episode", "discounted", "step"]),
    help="What a limit bounds: the sum over an episode, the discounted sum, or the average per step.",
)
@click.option("--seed", default=0, show_default=True, help="Of everything random.")
@click.option("--iterations", default=400, show_default=True, help="Policy iterations.")
@click.option("--steps", type=int, help="Steps of every environment in an iteration.  [default: 500]")
@click.option("--num-envs", type=int, help="Environments stepped together.  [default: 10]")
@click.option("--gamma", type=float, help="Discount factor of the advantages.  [default: 0.98]")
@click.option("--eta-dual", type=float, help="pmd-pd, npg-pd: the dual step.  [default: 0.0005]")
@click.option("--radius", type=float, help="Of the trust region: mean KL divergence of a step.  [default: 0.003]")
@click.option("--normalise", is_flag=True, default=None, help="Scale observations by their mean and deviation.")
@click.option("--set", "others", multiple=True, metavar="KEY=VALUE", help="Any other option of cmdpkit.train.")
@click.option("--time-limit", type=float, metavar="SECONDS", help="Stop after this long; the run can be resumed.")
@click.option("--out", type=click.Path(file_okay=False), help="Folder of the run.  [default: runs/ENV-METHOD-SEED]")
@click.option("--resume", is_flag=True, help="Continue the run in its folder.")
@click.option("--tensorboard", is_flag=True, help="Also write TensorBoard's files to the folder.")
@JSON
def train(env: str, method: str, seed: int, out: str | None, others: tuple[str, ...], **settings: Any) -> None:
    """Train a neural policy on ENV, a registered Gymnasium environment with costs (module:name imports it first)."""
    as_json, resume = settings.pop("as_json"), settings["resume"]
    _need("torch", "gymnasium", "safetensors")
    import cmdpkit.envs  # noqa: F401 - registers the environments
    from cmdpkit.report import training_report
    from cmdpkit.training import train as run
    from cmdpkit.training_result import TrainingFailed

    settings = {name: value for name, value in settings.items() if value is not None}
    more = dict(_setting(text) for text in others)
    clash = [key for key in more if key in (*settings, "seed", "method", "out", "env", "progress", "callback")]
    if clash:
        raise ValueError(f"--set {clash[0]}=... : it has a flag of its own, see cmdpkit train --help")
    settings |= more
    folder = out or f"runs/{env.replace(':', '-').replace('/', '-')}-{method}-{seed}"
    try:
        result = run(env, method, seed=seed, out=folder, progress=sys.stderr.isatty(), **settings)
    except TrainingFailed as error:
        raise ValueError(str(error)) from error
    except FileExistsError as error:
        raise ValueError(f"{error}: --resume or --out") from None
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
    else:
        _print(training_report(result))
    from cmdpkit.result import Status

    finished = result.status is Status.ITERATION_LIMIT
    if not finished and not as_json:
        click.echo(
            f"stopped early ({result.status.value}); {'the same command continues' if resume else 'add --resume'}"
        )
    sys.exit(DONE if finished else LIMIT_REACHED)


@cli.command(short_help="Certify a trained policy on fresh episodes.")
@click.argument("run", type=click.Path(file_okay=False))
@click.option("--episodes", default=1_000, show_default=True, help="How many.")
@click.option("--confidence", default=0.95, show_default=True, help="Of all intervals together.")
@click.option("--seed", default=0, show_default=True, help="Of the episodes.")
@JSON
def evaluate(run: str, episodes: int, confidence: float, seed: int, as_json: bool) -> None:
    """Certify the policy of RUN, a folder written by `cmdpkit train`, on fresh episodes.

    Exit codes: 0 every limit is satisfied, 1 a limit is violated or undecided, 2 bad input.
    """
    _need("gymnasium")
    import cmdpkit.envs  # noqa: F401
    from cmdpkit.episodes import certify_on_episodes
    from cmdpkit.neural_policy import NeuralPolicy
    from cmdpkit.report import episodes_report

    about = Path(run) / "run.json"
    if not about.exists():
        raise FileNotFoundError(f"{run} is not the folder of a run: it has no run.json")
    try:
        config = json.loads(about.read_text())
        env, limits, measure = config["env"], config["limits"], config["measure"]
        rest = {name: config["options"][name] for name in ("steps", "gamma") if name in config["options"]}
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{about} is damaged: {error}") from error
    if env.startswith("python: "):
        raise ValueError(
            f"{run} was trained on a Python function ({env.removeprefix('python: ')}), which only your program can "
            "make: use cmdpkit.certify_on_episodes(env, policy, limits)"
        )
    policy = NeuralPolicy.load(Path(run) / "policy.npz")
    proof = certify_on_episodes(env, policy, limits, measure, confidence, episodes, seed=seed, progress=True, **rest)
    if as_json:
        click.echo(json.dumps(proof.to_dict(), indent=2))
    else:
        _print(episodes_report(proof, limits))
    sys.exit(DONE if proof.satisfied else LIMIT_REACHED)


def _need(*packages: str) -> None:
    from importlib.util import find_spec

    from cmdpkit.training import NEURAL

    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ValueError(f"this needs {' and '.join(missing)}: {NEURAL}")


def _list_problems(as_json: bool) -> None:
    from cmdpkit.problems import CATALOGUE

    lines = {name: (make.__doc__ or "").strip().splitlines()[0] for name, make in CATALOGUE.items()}
    if as_json:
        click.echo(json.dumps(lines, indent=2))
        return
    from textwrap import fill

    width = max(map(len, lines)) + 2
    for name, line in lines.items():
        click.echo(fill(f"{name:<{width}}{line}", width=79, subsequent_indent=" " * width))
    click.echo("\nsolve one with `cmdpkit solve NAME`, read about it with `cmdpkit problems NAME`")


def _describe(name: str, cmdp: CMDP) -> None:
    from inspect import getdoc, signature
    from textwrap import fill

    from cmdpkit.problems import CATALOGUE

    make = CATALOGUE[name]
    settings = ", ".join(f"{p.name}={p.default!r}" for p in signature(make).parameters.values())
    click.echo(fill(f"{name}({settings})", width=79, subsequent_indent="    ") + "\n")
    for paragraph in (getdoc(make) or "").split("\n\n"):
        if paragraph.startswith("Example"):
            break
        indented = paragraph.splitlines()[-1].startswith(" ")
        click.echo((paragraph if indented else fill(paragraph, width=79)) + "\n")
    click.echo(repr(cmdp))


def _model(name: str, parameters: tuple[str, ...] = ()) -> CMDP:
    """A model file, or a built-in problem by name, with parameters."""
    from cmdpkit.model import CMDP
    from cmdpkit.problems import CATALOGUE

    if name in CATALOGUE and not Path(name).is_file():
        return _built_in(name, parameters)
    if not Path(name).exists():
        raise FileNotFoundError(f"no such file: {name}; it is not a built-in problem either ({', '.join(CATALOGUE)})")
    if parameters:
        raise ValueError(f"--set is for built-in problems; {name} is a model file")
    return CMDP.load(name)


def _built_in(name: str, parameters: tuple[str, ...]) -> CMDP:
    from inspect import signature

    from cmdpkit.problems import CATALOGUE

    if name not in CATALOGUE:
        raise ValueError(f"unknown problem {name!r}; choose one of {', '.join(CATALOGUE)}")
    settings = dict(_setting(text) for text in parameters)
    known = signature(CATALOGUE[name]).parameters
    unknown = [key for key in settings if key not in known]
    if unknown:
        raise ValueError(f"problem {name!r} has no parameter {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    return CATALOGUE[name](**settings)


def _setting(text: str) -> tuple[str, Any]:
    """KEY=VALUE with a Python literal as the value."""
    from ast import literal_eval

    key, _, value = text.partition("=")
    try:
        return key, literal_eval(value)
    except (ValueError, SyntaxError, TypeError):
        raise ValueError(f"--set {text!r} must be KEY=VALUE with a number, a tuple or a quoted text") from None


def _beside(out: str) -> Path:
    return Path(out).with_suffix(".json")


def _exit_code(status: Status) -> int:
    from cmdpkit.result import Status

    return {Status.OPTIMAL: DONE, Status.INFEASIBLE: INFEASIBLE}.get(status, LIMIT_REACHED)


def _print(report: Any) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    # A narrow terminal may break the lines, but no digit may be cut off.
    Console(highlight=False, width=max(console.width, 80)).print(report)


def main() -> None:
    """Run the command line; what the user did wrong ends in one line on stderr, never in a traceback."""
    try:
        cli(prog_name="cmdpkit", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(BAD_INPUT)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(LIMIT_REACHED)
    except MemoryError as error:
        click.echo(f"Error: not enough memory for this model ({error})", err=True)
        sys.exit(BAD_INPUT)
    except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(BAD_INPUT)


if __name__ == "__main__":
    main()
