"""`cmdpkit show`: what a file holds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from cmdpkit.cli.common import JSON, show

if TYPE_CHECKING:
    from cmdpkit.files import PathLike
    from cmdpkit.policy import MixturePolicy, StagedPolicy, TabularPolicy

NAMED = 10
"""Randomised states that are named."""


@click.command("show", short_help="Show what a model, policy or result file holds.")
@click.argument("file", type=click.Path())
@click.option("--limit", default=20, show_default=True, help="Rows of the table of a policy.")
@JSON
def show_file(file: str, limit: int, as_json: bool) -> None:
    """Show what FILE holds: a model (CMDP.save), a policy or a mixture (policy.save), or a result (result.save).

    The result of a sharded model is a folder.
    """
    from cmdpkit.checks import check_count
    from cmdpkit.files import kind_of
    from cmdpkit.run.storage import file_of

    check_count(limit, "limit", least=1)
    shown = {
        "cmdpkit model": _model,
        "cmdpkit policy": _policy,
        "cmdpkit staged policy": _staged,
        "cmdpkit mixture": _mixture,
        "cmdpkit result": _result,
    }
    kind = kind_of(file_of(file))
    if kind not in shown:
        raise ValueError(f"{file} holds {kind!r}; show takes files of models, policies, mixtures and results")
    facts, report = shown[kind](file, limit)
    if as_json:
        click.echo(json.dumps({"kind": kind.removeprefix("cmdpkit "), **facts}, indent=2))
    else:
        for part in report:
            click.echo(part) if isinstance(part, str) else show(part)


Shown = tuple[dict[str, Any], list[Any]]
"""Facts for --json, and what is printed otherwise: text, or reports of Rich."""


def _model(file: PathLike, limit: int) -> Shown:
    from cmdpkit.model import CMDP
    from cmdpkit.tables import facts_table, limits_table, model_facts

    cmdp = CMDP.load(file)
    pairs = cmdp.pairs
    facts: dict[str, Any] = {
        "states": cmdp.states,
        "actions": cmdp.actions,
        "pairs": pairs.count,
        "objective": "maximise" if cmdp.maximise else "minimise",
        "objective_name": cmdp.objective_name,
        "objective_per_step": cmdp.objective_per_step,
        "gamma": cmdp.gamma,
        "criterion": cmdp.criterion,
        "horizon": cmdp.horizon,
        "constraints": [
            {"name": c.name, "sense": c.symbol, "limit": c.bound, "per_step": c.per_step} for c in cmdp.constraints
        ],
        "state_labels": pairs.state_labels,
        "action_labels": pairs.action_labels,
    }
    head = facts_table({"model": str(file), **model_facts(cmdp)}).text().strip()
    limits = ["", limits_table(cmdp).text()] if cmdp.num_constraints else []
    return facts, [head, *limits]


def _policy(file: PathLike, limit: int) -> Shown:
    from cmdpkit.policy import TabularPolicy

    policy = TabularPolicy.load(file)
    head = f"policy for {policy.states:,} states and {policy.actions:,} actions"
    return _policy_facts(policy, limit), [head, *_policy_lines(policy, limit)]


def _staged(file: PathLike, limit: int) -> Shown:
    from cmdpkit.policy import StagedPolicy

    policy = StagedPolicy.load(file)
    head = f"policy for {policy.horizon:,} stages, {policy.states:,} states and {policy.actions:,} actions"
    return {"stages": policy.horizon, **_policy_facts(policy, limit)}, [head, *_policy_lines(policy, limit)]


def _policy_facts(policy: TabularPolicy | StagedPolicy, limit: int) -> dict[str, Any]:
    table = policy.table(limit)
    return {
        "states": policy.states,
        "actions": policy.actions,
        "rows": [dict(zip(table.columns, row, strict=True)) for row in table],
        "total_rows": table.total,
        "randomised_states": policy.randomised_states(),
    }


def _policy_lines(policy: TabularPolicy | StagedPolicy, limit: int) -> list[str]:
    mixed = policy.randomised_states()
    names = ", ".join(map(str, mixed[:NAMED])) + (", ..." if len(mixed) > NAMED else "")
    told = f"randomises in {len(mixed):,} state{'' if len(mixed) == 1 else 's'}: {names}" if mixed else "deterministic"
    return [told, "", policy.table(limit).text()]


def _mixture(file: PathLike, limit: int) -> Shown:
    from cmdpkit.policy import MixturePolicy
    from cmdpkit.tables import Table

    mixture = MixturePolicy.load(file)
    table = Table({"policy": range(len(mixture)), "weight": mixture.weights.tolist()}).head(limit)
    return _mixture_facts(mixture), [_mixture_line(mixture), "", table.text()]


def _mixture_facts(mixture: MixturePolicy) -> dict[str, Any]:
    return {"states": mixture.states, "actions": mixture.actions, "weights": mixture.weights.tolist()}


def _mixture_line(mixture: MixturePolicy) -> str:
    sizes = f"{mixture.states:,} states and {mixture.actions:,} actions"
    return f"mixture of {len(mixture):,} policies for {sizes}; one is drawn per episode"


def _result(file: PathLike, limit: int) -> Shown:
    from cmdpkit.policy import MixturePolicy, ShardedPolicy, StagedPolicy, TabularPolicy
    from cmdpkit.report import result_report, training_report
    from cmdpkit.run.result import Result, TrainingResult
    from cmdpkit.run.storage import class_of

    if class_of(file) is TrainingResult:
        trained = TrainingResult.load(file)
        return trained.to_dict(), [training_report(trained)]
    result = Result.load(file)
    facts, lines = result.to_dict(), [result_report(result), ""]
    policy = result.policy
    if isinstance(policy, (TabularPolicy, StagedPolicy)):
        return facts | {"policy": _policy_facts(policy, limit)}, [*lines, *_policy_lines(policy, limit)]
    if isinstance(policy, ShardedPolicy):
        about = {"states": policy.bounds[-1], "actions": policy.actions, "blocks": policy.blocks}
        return facts | {"policy": {**about, "weights": policy.weights.tolist()}}, [*lines, repr(policy)]
    assert isinstance(policy, MixturePolicy)
    return facts | {"policy": _mixture_facts(policy)}, [*lines, _mixture_line(policy)]
