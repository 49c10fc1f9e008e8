"""What is decided, what was found and what is proved, in words. Plain text: whoever shows it escapes it."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

from cmdpkit.certificates.certificate import Certificate
from cmdpkit.model import Problem
from cmdpkit.model.limits import Between, Equal, Limit
from cmdpkit.run.result import Result
from cmdpkit.run.status import Status
from cmdpkit.tables import label, start_words

SHOWN_NAMES = 8
"""Actions that are listed by name."""


def number(value: float | None, digits: int = 6) -> str:
    """A number for people: few digits, a true minus sign, and a word where there is none."""
    if value is None or not isfinite(value):
        return "none"
    text = f"{value + 0.0:.{digits}g}"
    return text.replace("-", "−") if "e" not in text else text


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def objective_name(problem: Problem) -> str:
    return problem.objective_name or ("reward" if problem.maximise else "cost")


def measured(problem: Problem, per_step: bool = False, stage: int | None = None) -> str:
    """What a value of the objective, or of a limit, is."""
    if stage is not None:
        return f"expected value at stage {stage}"
    if per_step and problem.criterion == "discounted":
        return "expected discounted average per step"
    return problem.value_name


def problem_words(problem: Problem) -> list[tuple[str, str]]:
    """(title, text): what is decided, optimised and limited, and how time counts."""
    return [
        ("Decided", _decided(problem)),
        ("Maximised" if problem.maximise else "Minimised", _optimised(problem)),
        ("Limited", "; ".join(limit_words(problem, c) for c in problem.constraints) or "Nothing is limited."),
        ("Time", _time(problem)),
    ]


def _decided(problem: Problem) -> str:
    pairs = problem.pairs
    names = ""
    if pairs.action_labels is not None:
        more = ", …" if problem.actions > SHOWN_NAMES else ""
        names = f" ({', '.join(map(str, pairs.action_labels[:SHOWN_NAMES]))}{more})"
    some = "" if pairs.is_full else f"; {pairs.count:,} pairs of state and action are available"
    sizes = counted(problem.states, "state"), counted(problem.actions, "action")
    told = f"In each of {sizes[0]}, which of {sizes[1]}{names} to take{some}."
    when = " The choice may depend on the stage." if problem.horizon is not None else ""
    return f"{told} A policy may randomise.{when}"


def _optimised(problem: Problem) -> str:
    return f"{objective_name(problem)}: its {measured(problem, problem.objective_per_step)}."


def limit_words(problem: Problem, limit: Limit) -> str:
    """One limit as a sentence without its full stop."""
    low, high = limit.ends
    if isinstance(limit, Equal):
        bound = f"exactly {number(low)}"
    elif isinstance(limit, Between):
        bound = f"between {number(low)} and {number(high)}"
    else:
        bound = f"at most {number(high)}" if isfinite(high) else f"at least {number(low)}"
    return f"{limit.name}: {bound} ({measured(problem, limit.per_step, limit.stage)})"


def _time(problem: Problem) -> str:
    gamma = f"{problem.gamma:g}"
    if problem.criterion == "average":
        told = "Long-run averages: only what happens over and over again counts."
    elif problem.criterion == "total":
        told = "Totals until the process ends, without a discount."
    elif problem.criterion == "horizon":
        discount = f" Each step counts {gamma} times the one before." if problem.gamma < 1.0 else ""
        told = f"{counted(problem.horizon or 0, 'step')}; then the process ends.{discount}"
    else:
        told = f"Discounted: each step counts {gamma} times the one before"
        told += f", so that about {1.0 / (1.0 - problem.gamma):,.3g} steps matter." if problem.gamma < 1.0 else "."
    initial = getattr(problem, "initial", None)
    start = (
        f" The start: {start_words(initial, problem.pairs.state_labels)}." if isinstance(initial, np.ndarray) else ""
    )
    return told + start


# -- what is proved ---------------------------------------------------------------------------------------------------


def proof_words(result: Result) -> list[str]:
    """What status and certificate prove, as sentences."""
    proof, problem = result.certificate, result.model
    if proof is None:
        return ["Nothing is proved: the simulator states no bounds, without which samples prove nothing."]
    if not isinstance(proof, Certificate):
        return _sampled_words(proof)
    if proof.infeasibility is not None:
        return _infeasible_words(proof)
    better = "more" if problem.maximise else "less"
    name = objective_name(problem)
    told = [f"The policy attains {name} {number(proof.objective, 9)}."]
    if isfinite(proof.bound):
        among = "No policy that meets the limits" if problem.num_constraints else "No policy"
        told.append(f"{among} attains {better} than {number(proof.bound, 9)}.")
        told.append(f"So the policy is within a relative {proof.gap:.1e} of the best there is.")
    else:
        told.append("Nothing has been proved yet about how much better another policy could be.")
    if problem.num_constraints:
        told.append(_met_words(result.status, proof))
    if result.deterministic_bound is not None:
        told.append(
            f"Among policies that do not randomise none is better than {number(result.deterministic_bound, 9)}, "
            "as branch and bound claims; this is not proved."
        )
    told.append(
        "These statements are recomputed from the model, apart from the solver, and count rounding errors."
        if isfinite(proof.bound)
        else "The values of the policy are recomputed from the model and count rounding errors."
    )
    return told


def is_proved(result: Result, tol: float = 1e-6) -> bool:
    """Whether the policy is proved optimal: also where time ran out after the proof, while it was being simplified."""
    proof = result.certificate
    return result.status is Status.OPTIMAL or (isinstance(proof, Certificate) and proof.optimal(tol))


def _met_words(status: Status, proof: Certificate) -> str:
    if proof.violation <= 0.0:
        return "Every limit is met."
    size = f"{proof.violation:.1e} (relative to max(1, |limit|))"
    if status is Status.OPTIMAL or proof.feasible(1e-6):
        return f"Every limit is met to within {size}, rounding included."
    return f"At least one limit is violated, the worst by {size}."


def _infeasible_words(proof: Certificate) -> list[str]:
    return [
        "No policy meets all limits.",
        "Proof: multiply by how much each limit is exceeded with its weight in the table below and add up. "
        f"For every policy the sum is at least {number(proof.infeasibility_margin, 3)}, which is above zero, "
        "so that at least one limit is exceeded whatever is done.",
        "The policy shown is one whose largest violation is smallest, or the best that was found.",
    ]


def _sampled_words(proof: Any) -> list[str]:
    told = [
        f"With {100.0 * proof.confidence:g} % confidence all intervals below hold at once. They come from "
        f"{proof.rollouts:,} fresh rollouts of {proof.horizon:,} steps, which were not used for learning.",
        "How much better another policy could be is not known from samples.",
    ]
    return told + ([f"The intervals assume that {proof.assumption}."] if proof.assumption else [])


def price_words(problem: Problem, limit: Limit, price: float) -> str:
    """What a shadow price says."""
    if abs(price) < 1e-12:
        return "does not bind"
    name, unit = objective_name(problem), "unit" if not limit.per_step else "unit per step"
    verb = "earns" if problem.maximise else "saves"
    looser = {"<=": "more", ">=": "less"}.get(limit.symbol, "more" if price > 0.0 else "less")
    return f"one {unit} {looser} {verb} up to {number(abs(price), 4)} of {name}"


def state_label(problem: Problem, state: int) -> str:
    return str(label(problem.pairs.state_labels, state))


def action_label(problem: Problem, action: int) -> str:
    return str(label(problem.pairs.action_labels, action))
