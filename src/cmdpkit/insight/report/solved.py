"""The report of one result of `solve`, section by section."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from math import isfinite
from typing import Any

import numpy as np

from cmdpkit.certificates.certificate import Certificate
from cmdpkit.evaluation import evaluate
from cmdpkit.exact.conflict import rounded_outwards
from cmdpkit.insight.choices import Choices, choices_of
from cmdpkit.insight.curves import Frontier
from cmdpkit.insight.diagnose import diagnose
from cmdpkit.insight.figures import (
    action_table,
    convergence_figure,
    frontier_figure,
    policy_map,
    rounded,
    stage_map,
    visits_figure,
    visits_map,
)
from cmdpkit.insight.frontier import frontier
from cmdpkit.insight.places import Map, find_map
from cmdpkit.insight.report.page import Page, badge, bullets, cards, paragraphs, table, terms
from cmdpkit.insight.words import (
    action_label,
    counted,
    is_proved,
    number,
    objective_name,
    price_words,
    problem_words,
    proof_words,
    state_label,
)
from cmdpkit.model import CMDP, Problem
from cmdpkit.policy import StagedPolicy, TabularPolicy
from cmdpkit.report import long_run_differences
from cmdpkit.run.result import Result
from cmdpkit.run.status import Status

ROWS = 20_000
"""Rows of a policy that a report holds: the most visited ones."""

TABLE_STATES, TABLE_ACTIONS = 300, 60
"""Up to so many states and actions all probabilities are drawn."""

STAGE_CELLS = 20_000
"""Up to so many pairs of stage and state a map over the stages is drawn."""

FRONTIER_TOL = 1e-3
"""Relative distance of the bounds of a curve: less than the width of its line."""


LONG_RUN = (
    "A limit per step counts early steps more, because of the discount. A model with average=True limits the long-run "
    "average itself."
)


@dataclass(eq=False)
class Budget:
    """Seconds that curves and diagnoses may take, all together."""

    seconds: float
    shares: int = 1
    started: float = field(default_factory=time.perf_counter)

    def share(self) -> float:
        """What the next one may take, if all that are left take as much."""
        left = max(0.0, self.seconds - (time.perf_counter() - self.started))
        part = left / max(self.shares, 1)
        self.shares -= 1
        return part


def solved_page(
    result: Result, title: str, subtitle: str, axes: Any, seconds: float, reproduce: Sequence[str], frontiers: bool
) -> Page:
    """The page of a result; `reproduce` is HTML that says how to get it again."""
    page = Page(title, subtitle)
    problem = result.model
    page.banner = f'<p class="verdict">{status_badge(result.status)} <span>{escape(result.message)}</span></p>'
    page.add("summary", "Summary", cards(_key_numbers(result)), _proof(result))
    page.add("problem", "The problem", terms(problem_words(problem)))
    if problem.num_constraints:
        page.add("limits", "Limits", *_limits(result))
    _add_insight(page, result, Budget(seconds), frontiers)
    policy = result.policy
    if isinstance(policy, (TabularPolicy, StagedPolicy)):
        _add_policy(page, result, policy, find_map(problem, axes))
    drawn = convergence_figure(result)
    told = f"{counted(result.iterations, 'iteration')} of the method {result.method}, {number(result.time, 3)} s."
    if result.samples is not None:
        told += f" {result.samples:,} transitions were drawn."
    about = "Objective and violation of each iteration; where there is no point, no policy was known yet."
    page.add("convergence", "Convergence", paragraphs([told]), page.figure(drawn, about) if drawn else "")
    page.add("reproduce", "Reproduce", *reproduce)
    return page


def status_badge(status: Status) -> str:
    kind = {Status.OPTIMAL: "good", Status.INFEASIBLE: "bad"}.get(status, "open")
    return badge(status.value, kind)


def _key_numbers(result: Result) -> list[tuple[str, str, str]]:
    problem, proof = result.model, result.certificate
    sense = "maximised" if problem.maximise else "minimised"
    found = [(objective_name(problem), number(result.objective, 7), f"{sense}, of the policy below")]
    if not isinstance(proof, Certificate):
        if proof is not None:
            low, high = proof.objective_interval
            found.append(
                ("interval", f"{number(low, 4)} to {number(high, 4)}", f"{100 * proof.confidence:g} % together")
            )
        return found
    if proof.infeasibility is not None:
        worst = float(np.max(result.violations)) if result.violations.size else 0.0
        return [*found, ("least violation", number(worst, 4), "of the policy that misses least, in the worst limit")]
    if isfinite(proof.bound):
        better = "more" if problem.maximise else "less"
        found.append(("proved bound", number(proof.bound, 7), f"no policy within the limits attains {better}"))
        found.append(("gap", f"{proof.gap:.1e}", "relative distance of the two"))
    if problem.num_constraints:
        found.append(("violation", f"{proof.violation:.1e}", "largest, relative to max(1, |limit|)"))
    return found


def _proof(result: Result) -> str:
    return "<h3>What is proved</h3>" + bullets(proof_words(result))


# -- limits -----------------------------------------------------------------------------------------------------------


def _limits(result: Result) -> list[str]:
    problem, proof = result.model, result.certificate
    if proof is not None and not isinstance(proof, Certificate):
        return [_sampled_limits(problem, proof)]
    infeasible = proof is not None and proof.infeasibility is not None
    prices: Any = proof.infeasibility if proof is not None and infeasible else result.multipliers
    rows, missed = [], []
    for i, c in enumerate(problem.constraints):
        value = float(result.constraint_values[i])
        slack = c.slack(value)
        price = float(prices[i])
        nearer = min(c.ends, key=lambda end: abs(end - value))
        if slack < -1e-6 * max(1.0, abs(nearer)):
            missed.append(i)
        meaning = "" if infeasible else price_words(problem, c, price)
        shown = f"{number(slack, 3)} (violated)" if i in missed else number(0.0 if abs(slack) < 1e-12 else slack, 3)
        rows.append([f"{c.name}{c.unit}", str(c), number(value), shown, number(price), meaning])
    titles = ["limit on", "limit", "value", "slack", "weight in the proof" if infeasible else "shadow price", ""]
    parts = [table(titles, rows, (0, 5), missed)]
    if not infeasible:
        parts.append(
            paragraphs(
                ["A shadow price is what one more unit of a limit is worth at most: the slope of the curves below."],
                "note",
            )
        )
    differ = long_run_differences(result) if isinstance(proof, Certificate) else []
    if differ:
        told = [f"{name}: {number(average)} per step in the long run." for name, average in differ]
        parts += ["<h3>In the long run</h3>", bullets(told), paragraphs([LONG_RUN], "note")]
    return parts


def _sampled_limits(problem: Problem, proof: Any) -> str:
    rows = [
        [
            f"{c.name}{c.unit}",
            str(c),
            number(float(proof.constraint_values[i])),
            f"{number(float(proof.intervals[i][0]), 4)} to {number(float(proof.intervals[i][1]), 4)}",
            proof.verdicts[i],
        ]
        for i, c in enumerate(problem.constraints)
    ]
    titles = ["limit on", "limit", "value", f"{100.0 * proof.confidence:g} % interval", "verdict"]
    return table(titles, rows, (0, 4), [i for i, verdict in enumerate(proof.verdicts) if verdict == "violated"])


# -- frontiers, and what to relax -------------------------------------------------------------------------------------


def _add_insight(page: Page, result: Result, budget: Budget, frontiers: bool) -> None:
    cmdp = result.model
    if not isinstance(cmdp, CMDP) or not cmdp.num_constraints or not isinstance(result.certificate, Certificate):
        return
    inner = cmdp if cmdp.lowering is None else cmdp.lowering.model
    if inner.is_extreme:
        return
    infeasible = result.status is Status.INFEASIBLE
    names = cmdp.one_sided.names if frontiers else []
    budget.shares = len(names) + infeasible
    if infeasible:
        page.add("relax", "What to relax", _relax(cmdp, budget.share()))
    if names:
        parts = [_frontier(page, cmdp, name, result, budget.share()) for name in names]
        page.add("frontier", "Frontiers", *parts)


def _relax(cmdp: CMDP, seconds: float) -> str:
    found = diagnose(cmdp, time_limit=seconds)
    if found.feasible is not False:
        return paragraphs(["The time did not suffice to find out which limits conflict: cmdpkit diagnose goes on."])
    quoted = " and ".join(f"“{name}”" for name in found.conflict)
    told = []
    if found.conflict:
        told.append(f"{quoted} cannot be met {'by any policy' if len(found.conflict) == 1 else 'together'}.")
    if found.irreducible and len(found.conflict) > 1:
        told.append("Without any one of them the others can be met.")
    if found.relaxations and not any(found.relaxations.values()):
        told.append("No single limit helps: more than one has to be relaxed.")
    rows = []
    for i, c in enumerate(found.model.rows):
        value = found.relaxations.get(str(c.name))
        alone = "not known" if c.name not in found.relaxations else "does not help alone"
        if value is not None:
            alone = f"{c.symbol} {rounded_outwards(value, c.sign)}"
        rows.append([f"{c.name}{c.unit}", str(c), number(float(found.misses[i])), alone])
    note = f"The policy that misses least misses by {number(-float(found.margin[0]))} at most."
    titles = ["limit on", "limit", "missed by", "relax it alone to"]
    return paragraphs(told) + table(titles, rows, (0,)) + paragraphs([note], "note")


def _frontier(page: Page, cmdp: CMDP, name: str, result: Result, seconds: float) -> str:
    found = frontier(cmdp, name, tol=FRONTIER_TOL, time_limit=seconds)
    title = f"<h3>What the limit of {escape(name)} costs</h3>"
    if not found.feasible.any():
        return title + paragraphs(
            [
                "No value of this limit can be met, because the others cannot."
                if found.complete
                else "Not found in the time allowed."
            ]
        )
    index = found.model.names.index(name)
    answer = (float(found.model.limits[index]), result.objective) if is_proved(result) else None
    return title + page.figure(frontier_figure(found, answer), frontier_words(found))


def frontier_words(found: Frontier) -> str:
    """What a curve shows and what is proved about it."""
    name = objective_name(found.model)
    told = f"The best {name} as a function of the limit of {found.name}; all else stays as it is. "
    apart = f"{100.0 * found.gap:.2g} % apart"
    if found.complete:
        told += f"The optimum is proved to lie in the band, whose bounds are {apart} at most."
    else:
        told += f"The time did not suffice for the whole curve: the bounds are up to {apart}."
    if isfinite(edge := float(found.least[0])):
        worse = "less" if found.model.rows[found.model.names.index(found.name)].sign > 0 else "more"
        who = "No policy that meets the other limits" if found.model.num_constraints > 1 else "No policy"
        told += f" {who} has {worse} than {number(0.0 if abs(edge) < 1e-7 else edge)}."
    return told


# -- the policy -------------------------------------------------------------------------------------------------------


def visits_words(problem: Problem) -> tuple[str, str]:
    """The unit of visits, and what it means."""
    if problem.criterion in ("total", "horizon"):
        return "visits", "Visits: the expected number until the end."
    if problem.criterion == "average":
        return "share of time", "Visits: the share of the steps in the long run."
    return "share of time", "Visits: the share of the steps, each weighed by its discount."


def _add_policy(page: Page, result: Result, policy: Any, where: Map | None) -> None:
    problem = result.model
    visits = evaluate(problem, policy).pair_occupancy if isinstance(problem, CMDP) else None
    choices = choices_of(policy, visits)
    mixed = int(choices.randomised.any(axis=0).sum())
    told = f"The policy randomises in {counted(mixed, 'state')}." if mixed else "The policy does not randomise."
    unit, meaning = visits_words(problem)
    parts = [paragraphs([told])]
    if where is not None:
        parts.append(_maps(page, problem, choices, where, unit))
    elif choices.horizon is not None and choices.best.size <= STAGE_CELLS:
        about = "The most probable action at each stage and state; circles mark randomised choices."
        parts.append(page.figure(stage_map(problem, choices), about))
    elif choices.horizon is None and problem.states <= TABLE_STATES and problem.actions <= TABLE_ACTIONS:
        parts.append(page.figure(action_table(problem, choices), "The probability of every action in every state."))
    parts.append(_table(page, problem, choices, where, unit, meaning))
    page.add("policy", "The policy", *parts)
    if choices.visits is not None and where is None:
        about = f"The most visited states. {meaning}"
        page.add("visits", "Visits", page.figure(visits_figure(problem, choices, unit), about))


def _maps(page: Page, problem: Problem, choices: Choices, where: Map, unit: str) -> str:
    stages = range(choices.horizon or 1)
    many = len(stages) > 1 and where.shape[0] * where.shape[1] * len(stages) <= STAGE_CELLS
    policies = [policy_map(problem, choices, where, t) for t in (stages if many else stages[:1])]
    told = "The most probable action; circles mark states in which the policy randomises."
    parts = [page.figure(policies[0], told, policies if many else ())]
    if choices.visits is not None:
        visits = [visits_map(choices, where, unit, t) for t in (stages if many else stages[:1])]
        parts.append(page.figure(visits[0], "How often each state is visited.", visits if many else ()))
    return f'<div class="pair">{"".join(parts)}</div>'


def _table(page: Page, problem: Problem, choices: Choices, where: Map | None, unit: str, meaning: str) -> str:
    page.data["policy"] = policy_data(problem, choices, where)
    rows, shown = choices.best.size, min(choices.best.size, ROWS)
    notes = [meaning] if choices.visits is not None else []
    if shown < rows:
        notes.append(f"The table has the {shown:,} most visited of {rows:,} rows; the file of the policy has all.")
    staged = choices.horizon is not None
    stage = (
        f'<label>Stage <input type="range" id="stage" min="0" max="{(choices.horizon or 1) - 1}" value="0" step="1">'
        ' <output id="stage-number">0</output></label>'
        '<label><input type="checkbox" id="all-stages"> all stages</label>'
        if staged
        else ""
    )
    titles = [*(["stage"] if staged else []), "state", "action", *([unit] if choices.visits is not None else [])]
    right = {unit}
    head = "".join(f"<th{' class=right' if title in right else ''}>{title}</th>" for title in titles)
    return (
        "<h3>State by state</h3>"
        f'<div class="tools">{stage}<input type="search" id="find" placeholder="Find a state or an action" '
        'aria-label="Find a state or an action"><label>Action <select id="action"><option value="">any</option>'
        '</select></label><label><input type="checkbox" id="mixed"> randomised only</label></div>'
        f'<div class="scroll"><table id="policy-table"><thead><tr>{head}</tr></thead><tbody id="policy-rows"></tbody>'
        '</table></div><div class="pager"><button id="before">Previous</button><span id="count" role="status"></span>'
        f'<button id="after">Next</button></div>{paragraphs(notes, "note")}'
    )


def policy_data(problem: Problem, choices: Choices, where: Map | None = None, most: int = ROWS) -> dict[str, Any]:
    """The rows of the table, most visited first, as short lists: an action, or actions with their probabilities."""
    stages, states = choices.most_visited(most)
    plays: list[Any] = []
    for t, s in zip(stages.tolist(), states.tolist(), strict=True):
        if choices.played[t, s] == 1:
            plays.append(int(choices.best[t, s]))
        else:
            plays.append([x for a, p in choices.plays(t, s) for x in (a, float(f"{p:.6g}"))])
    named = problem.pairs.state_labels is not None or where is not None
    played = sorted({int(a) for a in np.unique(problem.pairs.action[(choices.pi > 1e-9).any(axis=0)])})
    return {
        "stages": stages.tolist() if choices.horizon is not None else None,
        "states": states.tolist(),
        "stateNames": [_state_name(problem, where, s) for s in states.tolist()] if named else None,
        "actionNames": [action_label(problem, a) for a in range(problem.actions)]
        if problem.pairs.action_labels is not None
        else None,
        "played": played,
        "plays": plays,
        "visits": None if choices.visits is None else rounded(choices.visits[stages, states], 4),
    }


def _state_name(problem: Problem, where: Map | None, state: int) -> str:
    """Its label, or its number with its place on the map."""
    if problem.pairs.state_labels is not None or where is None or (where.at[state] < 0).any():
        return state_label(problem, state)
    places = ", ".join(f"{name} {x}" for name, x in zip(where.names, where.at[state], strict=True))
    return f"{state} ({places})"
