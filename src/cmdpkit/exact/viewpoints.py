"""Policies as centres of local models: blends, which become columns as well, and the oracle's last policy."""

from __future__ import annotations

import numpy as np

from cmdpkit.checks import Array, PairTable
from cmdpkit.evaluation.backup import advantages
from cmdpkit.evaluation.gains import policy_system
from cmdpkit.evaluation.system import PolicySystem
from cmdpkit.exact.columns import ColumnSearch
from cmdpkit.exact.errors import policy_slack, sums_beside
from cmdpkit.exact.local import Blend, Viewpoint

VISITS_ACCURACY, OF_MANY = 1e-4, 1e-3
"""State visits of a viewpoint, relative, and those of a large model whose chains mix: no more steps are taken then."""


SHARPER, IN_STATES = 0.1, 10.0
"""The sums of a column of a rigorous search are found to this part of what others are: their errors count at steep
prices. Values in all states need not be so exact where visits correct what is wrong with them at the start."""


def oracle_view(search: ColumnSearch) -> Viewpoint:
    """The oracle's last policy as the centre of a local model."""
    oracle = search.oracle
    if oracle.state_values is None:  # only its Lagrangian was bounded
        oracle.take(oracle.choice, np.append(1.0, search.multipliers), guess=search.near)
    assert oracle.state_values is not None
    system = oracle.system or policy_system(search.cmdp, choice=oracle.choice, plan=oracle.plan)
    return _viewpoint(search, Blend([oracle.choice], np.ones(1)), system, oracle.state_values)


def evaluate_blend(search: ColumnSearch, blend: Blend) -> Viewpoint:
    """Take a randomised policy as a column; also the centre of the next local model."""
    search.factors = None
    system, state_values, pi = _blend_values(search, blend, search.nearest())
    view = _viewpoint(search, blend, system, state_values)
    if search.goal and search.plan.has_factors and search.cmdp.criterion != "average":
        search.factors = system
    if _corrects(search):
        assert pi is not None
        assert view.table is not None
        change = search.cmdp.pairs.expect(pi, view.table.T)
        _add_corrected(search, blend, state_values, change, view.visits, system, pi)
    elif search.add(blend, view.values, state_values, pi=pi, table=view.table):
        search.keep(view.visits)
    return view


def add_beside(search: ColumnSearch, view: Viewpoint, table: Array, blend: Blend) -> None:
    """Take a policy near a viewpoint with this table of advantages as a column, but not as a viewpoint.

    Of its values only the sums from the start are needed, which its visits tell: one linear system instead of m + 1.
    They need be no more exact than the policy is near. For averages there is no bound on what is wrong with them.
    """
    cmdp = search.cmdp
    if cmdp.criterion == "average":
        _, state_values, pi = _blend_values(search, blend, view.state_values)
        search.add(blend, cmdp.initial @ state_values - np.append(0.0, cmdp.offsets), state_values, pi=pi)
        return
    pi = blend.probabilities(cmdp.pairs)
    system, change = policy_system(cmdp, pi, plan=search.plan), cmdp.pairs.expect(pi, table.T)
    # |error of V_i| ≤ |x − x̂| · max |δ_i|, and |x| = 1 / (1 − γ) in the 1-norm
    allowed = SHARPER * search.oracle.accuracy / np.maximum(np.abs(change).max(axis=0), 1e-300)
    visits = system.state_occupancy(view.visits, accuracy=float(allowed.min()) * (1.0 - cmdp.gamma))
    _add_corrected(search, blend, view.state_values, change, visits, system, pi)


def _corrects(search: ColumnSearch) -> bool:
    """Whether a column's sums are corrected by its visits: where neither values nor visits are exact."""
    return search.rigorous and not search.plan.is_direct and search.cmdp.criterion != "average"


def _add_corrected(
    search: ColumnSearch,
    blend: Blend,
    state_values: Array,
    change: Array,
    visits: Array,
    system: PolicySystem,
    pi: PairTable,
) -> None:
    """Take a column with the sums of `sums_beside`."""
    cmdp = search.cmdp
    sums, errors = sums_beside(cmdp, state_values, change, visits, system.flow(visits), policy_slack(cmdp, pi))
    search.add(blend, sums - np.append(0.0, cmdp.offsets), errors=errors)


def _blend_values(
    search: ColumnSearch, blend: Blend, near: Array | None
) -> tuple[PolicySystem, Array, PairTable | None]:
    """The linear system of a blend, its values (S, m + 1) from a guess, and its probabilities if errors are bounded."""
    pi = blend.probabilities(search.cmdp.pairs)
    system, costs = search.system_of(pi)
    kept = pi if search.rigorous else None
    del pi  # of a large model, before it is solved
    accuracy = search.oracle.accuracy * (IN_STATES if _corrects(search) else SHARPER if search.rigorous else 1.0)
    return system, system.state_values(costs, near, accuracy), kept


def _viewpoint(search: ColumnSearch, policy: Blend, system: PolicySystem, state_values: Array) -> Viewpoint:
    search.near = state_values
    accuracy = OF_MANY if search.oracle.backs_up else VISITS_ACCURACY
    search.visits = system.state_occupancy(search.visits, accuracy=accuracy)
    values = search.cmdp.initial @ state_values
    values[1:] -= search.cmdp.offsets
    # The advantages also tell the errors of the values
    table = advantages(search.cmdp, state_values) if search.rigorous else None
    return Viewpoint(policy, state_values, search.visits, values, table)
