"""What a result says where there is no optimum: which limits conflict, what would help, and where policies can stay."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np

from cmdpkit.certificates.checker import refutation
from cmdpkit.evaluation.patience import Stopped, until
from cmdpkit.exact.conflict import Conflict, minimal_conflict, relaxation, rounded_outwards
from cmdpkit.exact.joined import comes_back, separate_parts
from cmdpkit.exact.slater import least_miss
from cmdpkit.model import CMDP
from cmdpkit.run.budget import Budget
from cmdpkit.run.outcome import Outcome
from cmdpkit.run.status import Status

LARGEST_MISS, MISS_ACCURACY = 200_000, 1e-8
"""Up to this many state-action pairs an infeasible model gets the policy that misses its limits least."""

PARTS = "Policies can stay in parts of the model, and an optimum may have to mix them: 'auto', 'columns' and 'lp' do."

SMALL_GRAPH = 500
"""Up to this many states the graph of a model is searched for parts in which policies can stay."""

DIAGNOSE = "cmdpkit.diagnose(model) says which limits conflict, and how far to relax them."

LARGEST_CONFLICT, MOST_REMEDIES = 20_000, 4
"""Up to this many state-action pairs the conflicting limits are found; of so many of them the message says how far each
would have to be relaxed."""


def with_classes(cmdp: CMDP, outcome: Outcome, first_order: bool) -> Outcome:
    """Long-run averages that could not be proved: say so if policies can stay in parts of the model, and where."""
    if cmdp.criterion == "average" and first_order and outcome.status is Status.ITERATION_LIMIT:
        apart = cmdp.states <= SMALL_GRAPH and not comes_back(cmdp)
        return replace(outcome, note=f"{outcome.note} {PARTS}".strip()) if apart else outcome
    unproved = cmdp.criterion == "average" and outcome.status is Status.NUMERICAL_ERROR
    states = separate_parts(cmdp) if unproved else []
    if len(states) < 2:
        return outcome
    one, other = (cmdp.pairs.state_name(state) for state in states[:2])
    note = f"State {one} is in one such part, and state {other} in another."
    return replace(outcome, status=Status.SEVERAL_CLASSES, note=f"{note} {outcome.note}".strip())


def with_least_violation(cmdp: CMDP, outcome: Outcome, budget: Budget) -> Outcome:
    """An infeasible model: give the policy that misses the limits least, and say by how much and what would help."""
    size = cmdp.pairs.count
    if size > LARGEST_MISS:
        return replace(outcome, note=f"{outcome.note} {DIAGNOSE}".strip())
    if budget.exhausted():
        return outcome
    try:
        with until(budget.exhausted):
            found = least_miss(cmdp, MISS_ACCURACY, budget.exhausted)
    except Stopped:
        return outcome
    proved = outcome.certificate
    assert proved.infeasibility is not None
    assert proved.infeasibility_margin is not None
    conflict = Conflict((), cmdp.row_prices(proved.infeasibility), proved.infeasibility_margin, False)
    advice = DIAGNOSE
    if size <= LARGEST_CONFLICT and not cmdp.is_extreme:
        with contextlib.suppress(Stopped), until(budget.exhausted):
            rows = cmdp.one_sided
            conflict = minimal_conflict(rows, conflict.weights, conflict.margin, budget.exhausted)
            advice = _remedies(rows, conflict, budget)
    certificate = refutation(cmdp, found.policy, conflict.weights, conflict.margin)
    note = f"The best policy still misses a limit by {found.upper:.6g}. {advice}"
    return replace(outcome, policy=found.policy, certificate=certificate, note=note)


def _remedies(cmdp: CMDP, conflict: Conflict, budget: Budget) -> str:
    """Which single limits would have to be relaxed, and how far."""
    ways, undecided = [], False
    for i in conflict.members[:MOST_REMEDIES]:
        found = relaxation(cmdp, i, stop=budget.exhausted)
        if found is not None and np.isfinite(found.attained):
            ways.append(f"{cmdp.names[i]!r} to {rounded_outwards(found, float(cmdp.signs[i]))}")
        elif found is not None:
            undecided = True  # it may help; how far it must be relaxed was not found
    if len(conflict.members) > MOST_REMEDIES or budget.exhausted() or (undecided and not ways):
        return DIAGNOSE
    return f"Relax {' or '.join(ways)}." if ways else "No single limit helps: more than one has to be relaxed."
