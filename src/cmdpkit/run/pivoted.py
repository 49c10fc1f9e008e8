"""`auto` on a small model: a vertex of the occupancy LP found by pivots, and its proof."""

from __future__ import annotations

import contextlib

import numpy as np

from cmdpkit.certificates.certificate import Certificate
from cmdpkit.certificates.prover import vertex_proof
from cmdpkit.evaluation.factors import VERY_NARROW, is_narrow
from cmdpkit.evaluation.patience import Stopped, until
from cmdpkit.exact.memory import Memory
from cmdpkit.exact.pivots import Vertex, is_pivotable, optimal_vertex
from cmdpkit.model import CMDP
from cmdpkit.run.budget import Budget, Snapshot
from cmdpkit.run.history import oracle_history, oracle_row
from cmdpkit.run.outcome import Outcome
from cmdpkit.run.status import Status

NARROW_STATES = 130
"""Up to this many states pivots are faster than the column search where one limit and narrow bands make that fast."""


def solve_by_pivots(cmdp: CMDP, tol: float, budget: Budget) -> Outcome | None:
    """The best policy with its certificate; None where this way does not apply, or proves nothing."""
    if not cmdp.num_rows or not is_pivotable(cmdp) or budget.spent(0) is not None:
        return None
    if cmdp.num_rows == 1 and cmdp.states > NARROW_STATES and is_narrow(cmdp, VERY_NARROW):
        return None
    vertex = None
    with contextlib.suppress(Stopped), until(budget.exhausted):
        vertex = optimal_vertex(cmdp, budget.exhausted)
    if vertex is None:
        return None
    certificate, bound = vertex_proof(cmdp, vertex)
    if not (certificate.optimal(tol) and as_good(cmdp, certificate, bound, tol * cmdp.fine_scales[1:], tol)):
        return None
    prices = certificate.multipliers.copy()
    objective, violation = certificate.objective, certificate.violation
    news = Snapshot(1, objective, violation, certificate.bound, prices, budget.elapsed)
    history = oracle_history([oracle_row(news)])
    budget.tell(news)
    return Outcome(Status.OPTIMAL, vertex.policy, certificate, history, 1, memory=_memory(cmdp, vertex, certificate))


def as_good(cmdp: CMDP, certificate: Certificate, bound: float, allowed: object, tol: float) -> bool:
    """Whether a policy is as good as a search must make it, also relative to the size of small costs."""
    values = certificate.constraint_values[cmdp.owners]
    v_0, v = cmdp.sense * certificate.objective, cmdp.signs * values - cmdp.offsets
    return v_0 - bound <= tol * cmdp.proof_scale(v_0) and bool((v <= allowed).all())


def _memory(cmdp: CMDP, vertex: Vertex, certificate: Certificate) -> Memory:
    """The policy as the one column that the next search starts from."""
    sums = np.append(cmdp.sense * certificate.objective, cmdp.signs * certificate.constraint_values[cmdp.owners])
    return Memory(cmdp, (vertex.policy,), sums[None], np.ones(1), vertex.choice)
