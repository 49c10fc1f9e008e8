"""`cmdpkit train` and `evaluate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from cmdpkit.cli.common import CLUSTER, DONE, JSON, LIMIT_REACHED, WITH_POLICY, need, once, setting, show
from cmdpkit.cli.flags import Derived, method_flags, method_names, settings_flags
from cmdpkit.settings import NeuralSettings


def train_flags() -> list[click.Option]:
    """Flags of the methods and of the neural learner."""
    text = "pmd-pd: an implicit dual step, or Algorithm 1 with a fixed one.  [default: implicit]"
    dual = click.Option(["--dual"], type=click.Choice(["implicit", "fixed"]), help=text)
    return [*settings_flags(NeuralSettings), dual, *method_flags("neural")]


@click.command(cls=Derived, derive=train_flags, short_help="Train a neural policy on a constrained environment.")
@click.argument("env")
@click.option(
    "--method",
    default="pmd-pd",
    show_default=True,
    type=click.Choice(method_names("neural")),
    metavar="METHOD",
    help=f"One of {', '.join(method_names('neural'))}.",
)
@click.option("--limit", "limits", type=float, multiple=True, help="Limit on a cost; repeat it per cost, in order.")
@click.option(
    "--measure",
    default="episode",
    show_default=True,
    type=click.Choice(["episode", "discounted", "step"]),
    help="What a limit bounds: the sum over an episode, the discounted sum, or the average per step.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of all random numbers.")
@click.option("--iterations", default=400, show_default=True, help="Policy iterations.")
@click.option("--set", "others", multiple=True, metavar="KEY=VALUE", help="Any other option of cmdpkit.train, by name.")
@click.option("--time-limit", type=float, metavar="SECONDS", help="Stop after this time; the run can be resumed.")
@click.option("--out", type=click.Path(file_okay=False), help="Folder of the run.  [default: runs/ENV-METHOD-SEED]")
@click.option(
    "--resume/--no-resume",
    default=None,
    help="Require that there is a run to continue, or that there is none.  [default: continue if there is one]",
)
@click.option("--workers", type=int, help="Processes in which the environments run.  [default: this one]")
@click.option("--tensorboard", is_flag=True, help="Also write TensorBoard event files to the folder.")
@CLUSTER
@JSON
@WITH_POLICY
def train(env: str, method: str, seed: int, out: str | None, others: tuple[str, ...], **settings: Any) -> None:
    """Train a neural policy on ENV, a registered Gymnasium environment with costs (module:name imports it first)."""
    as_json, with_policy = settings.pop("as_json"), settings.pop("with_policy")
    if with_policy and not as_json:
        raise ValueError("--with-policy needs --json; the policy is saved in the folder of the run")
    need("torch", "gymnasium", "safetensors")
    import cmdpkit.envs  # noqa: F401 - registers the environments
    from cmdpkit.report import training_report
    from cmdpkit.run.result import TrainingFailed
    from cmdpkit.run.status import Status
    from cmdpkit.training import train as run

    settings = {name: value for name, value in settings.items() if value is not None}
    more = once(map(setting, others), "--set")
    clash = [key for key in more if key in (*settings, "seed", "method", "out", "env", "progress", "callback")]
    if clash:
        raise ValueError(f"--set {clash[0]}=... has its own flag; see cmdpkit train --help")
    settings |= more
    folder = out or f"runs/{env.replace(':', '-').replace('/', '-')}-{method}-{seed}"
    try:
        result = run(env, method, seed=seed, out=folder, progress=sys.stderr.isatty(), **settings)
    except TrainingFailed as error:
        raise ValueError(str(error)) from error
    except FileExistsError as error:
        raise ValueError(f"{error} (--resume or --out)") from None
    if as_json:
        click.echo(json.dumps(result.to_dict(policy=with_policy), indent=2))
    else:
        show(training_report(result))
    finished = result.status is Status.ITERATION_LIMIT
    if not finished and not as_json:
        click.echo(f"stopped early ({result.status.value}); the same command continues")
    sys.exit(DONE if finished else LIMIT_REACHED)


@click.command(short_help="Certify a trained policy on fresh episodes.")
@click.argument("run", type=click.Path(file_okay=False))
@click.option("--episodes", default=1_000, show_default=True, help="Number of episodes.")
@click.option("--confidence", default=0.95, show_default=True, help="Joint confidence of all intervals.")
@click.option("--seed", default=0, show_default=True, help="Seed of the episodes.")
@click.option("--best", is_flag=True, help="Certify the best policy within the limits instead of the last one.")
@click.option("--deterministic", is_flag=True, help="Take the most likely actions instead of drawing them.")
@CLUSTER
@JSON
def evaluate(
    run: str,
    episodes: int,
    confidence: float,
    seed: int,
    best: bool,
    deterministic: bool,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Certify the policy of RUN, a folder written by `cmdpkit train`, on fresh episodes.

    Exit codes: 0 every limit is satisfied, 1 a limit is violated or undecided, 2 bad input.
    """
    from cmdpkit.report import episodes_report

    proof, limits = judged(run, episodes, confidence, seed, best, deterministic, cluster)
    if as_json:
        click.echo(json.dumps(proof.to_dict(), indent=2))
    else:
        show(episodes_report(proof, limits))
    sys.exit(DONE if proof.satisfied else LIMIT_REACHED)


def run_config(run: str) -> dict[str, Any]:
    """What identifies a run: environment, limits, measure, seed and options."""
    about = Path(run) / "run.json"
    if not about.exists():
        raise FileNotFoundError(f"{run} is not the folder of a run: it has no run.json")
    try:
        config: dict[str, Any] = json.loads(about.read_text())
        options = config["options"]
        # steps bound an episode, unless the environments persist: then rollouts are shorter than episodes
        shared = ("gamma",) if options.get("persist") else ("steps", "gamma")
        return {name: config[name] for name in ("env", "limits", "measure", "seed")} | {
            "rest": {name: options[name] for name in shared if name in options}
        }
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{about} is damaged: {error}") from error


def judged(
    run: str,
    episodes: int,
    confidence: float,
    seed: int,
    best: bool = False,
    deterministic: bool = False,
    cluster: str | None = None,
) -> tuple[Any, list[float]]:
    """The certificate of the policy of a run on fresh episodes, and the limits."""
    need("gymnasium")
    import cmdpkit.envs  # noqa: F401
    from cmdpkit.learners.neural.policy import NeuralPolicy
    from cmdpkit.training import certify_on_episodes

    config = run_config(run)
    env, limits = config["env"], config["limits"]
    if is_python(env):
        raise ValueError(
            f"{run} was trained on a Python function ({env.removeprefix(PYTHON)}), which only your program can "
            "make: use cmdpkit.certify_on_episodes(env, policy, limits)"
        )
    file = Path(run) / ("best_policy.npz" if best else "policy.npz")
    if best and not file.exists():
        raise FileNotFoundError(f"{run} has no best policy: in no iteration were the costs surely within the limits")
    settings = {"seed": seed, "deterministic": deterministic, "cluster": cluster, **config["rest"]}
    proof = certify_on_episodes(
        env, NeuralPolicy.load(file), limits, config["measure"], confidence, episodes, progress=True, **settings
    )
    return proof, limits


PYTHON = "python: "


def is_python(env: str) -> bool:
    """Whether only the user's program can make an environment."""
    return env.startswith(PYTHON)
