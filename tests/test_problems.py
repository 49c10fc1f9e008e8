"""Each problem is feasible with room to spare, has a limit that binds, and is the model that its docstring tells."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linprog

from cmdpkit import evaluate, solve
from cmdpkit import slater_margin as margin
from cmdpkit.problems import (
    CATALOGUE,
    delivery,
    epidemic,
    garnet,
    grid,
    inventory,
    maintenance,
    paper,
    two_queues,
    wireless,
)

SMALL = {
    "paper": paper,
    "garnet": lambda: garnet(states=20, actions=4, successors=3, constraints=3),
    "garnet without mixing": lambda: garnet(states=20, actions=3, successors=1, seed=4),
    "two_queues": lambda: two_queues(capacity=5),
    "two_queues, slow": lambda: two_queues(capacity=5, gamma=0.999),
    "wireless": lambda: wireless(buffer=6),
    "wireless with backlog": lambda: wireless(buffer=6, backlog_limit=3.0),
    "grid": lambda: grid(rows=4, columns=6),
    "maintenance": lambda: maintenance(levels=5),
    "inventory": lambda: inventory(capacity=12, largest_order=6),
}


# -- an occupancy LP of its own: minimise ⟨c, d⟩ over d ≥ 0 with Σ_a d(s, a) − γ Σ d(s', a') P(s | s', a') = ρ(s) --


def occupancy_lp(cmdp, cost, rows=None, limits=None, slack_column=None):
    leave = sp.kron(sp.eye_array(cmdp.states), np.ones((1, cmdp.actions)))
    flow = leave - cmdp.gamma * sp.csr_array(cmdp.transitions).T
    bounds = [(0.0, None)] * flow.shape[1]
    if slack_column is not None:
        flow, bounds = sp.hstack([flow, np.zeros((cmdp.states, 1))]), [*bounds, (None, None)]
        rows, cost = np.column_stack([rows, slack_column]), np.append(0.0 * cost, -1.0)
    result = linprog(
        cost, A_ub=rows, b_ub=limits, A_eq=sp.csr_array(flow), b_eq=cmdp.initial, bounds=bounds, method="highs"
    )
    assert result.status == 0, result.message
    return result


def signed_limits(cmdp):
    """Rows g and bounds h with ⟨g, d⟩ ≤ h, from the constraints as the user stated them."""
    rows = [k.sign * (1.0 - cmdp.gamma if k.per_step else 1.0) * np.asarray(k.values).ravel() for k in cmdp.constraints]
    return np.array(rows), np.array([k.sign * k.limit for k in cmdp.constraints])


def signed_cost(cmdp):
    return (-1.0 if cmdp.maximise else 1.0) * cmdp.objective.ravel()


def slater_margin(cmdp):
    """The largest t with which some policy meets every limit by t."""
    rows, limits = signed_limits(cmdp)
    return -occupancy_lp(cmdp, signed_cost(cmdp), rows, limits, slack_column=np.ones(len(rows))).fun


@pytest.mark.parametrize("name", SMALL)
def test_there_is_room_and_a_limit_binds(name):
    cmdp = SMALL[name]()
    rows, limits = signed_limits(cmdp)
    assert slater_margin(cmdp) > 1e-3 * max(1.0, np.abs(limits).min())
    limited = occupancy_lp(cmdp, signed_cost(cmdp), rows, limits)
    free = occupancy_lp(cmdp, signed_cost(cmdp))
    # Worse by a clear step, so that every unconstrained optimum breaks a limit, not only the one found here.
    assert limited.fun > free.fun + 1e-3 * abs(free.fun)
    assert (rows @ free.x > limits + 1e-3).any()
    assert -limited.ineqlin.marginals.min() > 1e-6


@pytest.mark.parametrize(
    ("cmdp", "binding"),
    [
        (two_queues(capacity=8), 2),
        (wireless(backlog_limit=6.0), 2),
        (maintenance(), 1),
        (inventory(), 1),
        (grid(), 1),
        (garnet(), 2),
    ],
    ids=str,
)
def test_how_many_limits_bind(cmdp, binding):
    optimum = occupancy_lp(cmdp, signed_cost(cmdp), *signed_limits(cmdp))
    assert (optimum.ineqlin.marginals < -1e-6).sum() == binding
    assert slater_margin(cmdp) > 0.0


def test_a_backlog_limit_of_five_is_out_of_reach_of_the_transmitter():
    assert slater_margin(wireless(backlog_limit=5.0)) < -1e-3


def test_every_problem_is_in_the_catalogue_and_introduces_itself():
    for name, function in CATALOGUE.items():
        first = inspect.getdoc(function).splitlines()[0]
        assert function.__name__ == name
        assert len(first) < 90
        assert first.endswith(".")
        assert "Example:" in function.__doc__
        assert function().num_constraints > 0


@pytest.mark.parametrize(
    ("cmdp", "text"),
    [
        (paper(), "CMDP(states=20, actions=10, constraints=['utility'], gamma=0.8)"),
        (garnet(7, 3, 2, 1, 0.5), "CMDP(states=7, actions=3, constraints=['cost 1'], gamma=0.5)"),
        (garnet(7, constraints=0), "CMDP(states=7, actions=5, constraints=[], gamma=0.95)"),
        (two_queues(3, speeds=(0, 1)), "CMDP(states=16, actions=4, constraints=['power', 'length 2'], gamma=0.99)"),
        (wireless(5, 2, (1.0, 2.0)), "CMDP(states=12, actions=3, constraints=['power'], gamma=0.99)"),
        (grid(5, 7, gamma=0.9), "CMDP(states=35, actions=4, constraints=['unsafe visits'], gamma=0.9)"),
        (maintenance(4), "CMDP(states=5, actions=3, constraints=['downtime'], gamma=0.99)"),
        (inventory(6, 2), "CMDP(states=7, actions=3, constraints=['fill rate'], gamma=0.99)"),
        (delivery(2, 3), "CMDP(states=7, actions=8, constraints=['energy'], gamma=1)"),
        (epidemic(5, 4), "CMDP(states=6, actions=3, constraints=['overload', 'overload at the end'], horizon=4)"),
    ],
    ids=str,
)
def test_sizes(cmdp, text):
    assert repr(cmdp) == text


# -- paper --


def test_paper_has_its_published_optimum():
    cmdp = paper()
    rows, limits = signed_limits(cmdp)
    optimum = occupancy_lp(cmdp, signed_cost(cmdp), rows, limits)
    assert -optimum.fun == pytest.approx(4.462443636256558, abs=1e-8)
    assert -optimum.ineqlin.marginals[0] == pytest.approx(0.24266971, abs=1e-6)
    assert -occupancy_lp(cmdp, signed_cost(cmdp)).fun == pytest.approx(4.516923565352406, abs=1e-8)
    assert -occupancy_lp(cmdp, rows[0]).fun == pytest.approx(4.525027425684768, abs=1e-8)
    np.testing.assert_array_equal(cmdp.initial, 1 / 20)


# -- garnet --


def test_equal_seeds_give_equal_garnets():
    one, same, other = garnet(seed=3), garnet(seed=3), garnet(seed=4)
    assert (one.transitions != same.transitions).nnz == 0
    np.testing.assert_array_equal(one.costs, same.costs)
    np.testing.assert_array_equal(one.limits, same.limits)
    assert (one.transitions != other.transitions).nnz > 0


def test_garnet_has_as_many_different_successors_as_asked_and_uses_all_states_alike():
    cmdp = garnet(states=40, actions=50, successors=8, constraints=0)
    np.testing.assert_array_equal(np.diff(cmdp.transitions.indptr), 8)
    # Each state follows with probability 8/40: 400 of 2000 rows, standard deviation 18.
    follows = np.bincount(cmdp.transitions.indices, minlength=40)
    assert np.abs(follows - 400).max() < 5 * 18
    full = garnet(states=5, actions=2, successors=5, constraints=0)
    assert full.transitions.nnz == 5 * 2 * 5


@pytest.mark.parametrize("seed", range(8))
def test_garnet_limits_are_met_and_bind_whatever_the_seed(seed):
    cmdp = garnet(states=12, actions=3, successors=3, constraints=4, gamma=0.9, seed=seed)
    assert slater_margin(cmdp) > 1e-2
    limited = occupancy_lp(cmdp, signed_cost(cmdp), *signed_limits(cmdp))
    assert limited.fun > occupancy_lp(cmdp, signed_cost(cmdp)).fun + 1e-6


def test_garnet_slack_moves_the_limits_from_safe_to_greedy():
    tight, middle, loose = (garnet(slack=x).limits for x in (0.1, 0.5, 0.9))
    assert (tight < middle).all()
    np.testing.assert_allclose(middle, (tight + loose) / 2)


def test_a_large_garnet_takes_no_time():
    assert garnet(states=10_000, actions=5).transitions.nnz == 10_000 * 5 * 5


# -- two queues --


def queue_moves(cmdp, capacity, q1, q2, action):
    row = cmdp.transitions[[(q1 * (capacity + 1) + q2) * cmdp.actions + action]].toarray()[0]
    return {divmod(int(s), capacity + 1): row[s] for s in np.flatnonzero(row)}


def test_queue_events_have_their_rates():
    cmdp = two_queues(capacity=4, arrivals=(0.5, 0.4), speeds=(0.0, 0.5, 1.0))
    clock = 0.5 + 0.4 + 2.0
    expected = {(3, 3): 0.5, (2, 4): 0.4, (1, 3): 0.5, (2, 2): 1.0, (2, 3): 0.5}
    moves = queue_moves(cmdp, 4, 2, 3, action=1 * 3 + 2)  # speed 0.5 for queue 1, 1.0 for queue 2
    assert moves == pytest.approx({state: rate / clock for state, rate in expected.items()})


def test_a_faster_server_empties_its_own_queue_faster_and_an_empty_queue_is_not_served():
    cmdp = two_queues(capacity=4)
    leaves = [queue_moves(cmdp, 4, 2, 2, action=i * 3).get((1, 2), 0.0) for i in range(3)]
    assert leaves[0] == 0.0 < leaves[1] < leaves[2]
    for action in range(9):
        moves = queue_moves(cmdp, 4, 0, 0, action)
        assert moves == pytest.approx({(1, 0): 0.5 / 2.9, (0, 1): 0.4 / 2.9, (0, 0): 2.0 / 2.9})


def test_arrivals_at_a_full_queue_are_lost():
    cmdp = two_queues(capacity=4)
    assert queue_moves(cmdp, 4, 4, 4, action=0) == pytest.approx({(4, 4): 1.0})
    assert queue_moves(cmdp, 4, 4, 1, action=0) == pytest.approx({(4, 2): 0.4 / 2.9, (4, 1): 2.5 / 2.9})


def test_queue_costs_power_and_length():
    cmdp = two_queues(capacity=4, holding=(2.0, 1.0))
    state, action = 3 * 5 + 1, 2 * 3 + 1  # 3 and 1 customers; speeds 1.0 and 0.5
    assert cmdp.objective[state, action] == 2.0 * 3 + 1.0 * 1
    assert cmdp.constraints[0].values[state, action] == 1.5**2
    assert cmdp.constraints[1].values[state, action] == 1.0
    assert cmdp.initial[0] == 1.0


# -- wireless --


def test_a_slot_of_the_transmitter():
    cmdp = wireless(buffer=5, packets=3, gains=(0.5, 1.0, 2.0), arrivals=(0.5, 0.3, 0.2), fading=0.25)
    state, send = 4 * 3 + 0, 3  # four packets wait, and the channel is the worst
    assert cmdp.objective[state, send] == 3.0
    assert cmdp.constraints[0].values[state, send] == (2**3 - 1) / 0.5
    after = cmdp.transitions[[state * 4 + send]].toarray().reshape(6, 3)
    np.testing.assert_allclose(after[1:4], np.outer([0.5, 0.3, 0.2], [0.75, 0.25, 0.0]))
    assert after.sum() == pytest.approx(1.0)


def test_a_transmitter_sends_no_more_than_it_has_and_loses_what_does_not_fit():
    cmdp = wireless(buffer=5, packets=3, gains=(1.0,), arrivals=(0.0, 0.0, 1.0), backlog_limit=2.0)
    np.testing.assert_array_equal(cmdp.objective[:3], [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2]])
    np.testing.assert_array_equal(cmdp.constraints[0].values[0], 0.0)
    assert cmdp.transitions[[5 * 4 + 0]].toarray()[0, 5] == 1.0  # full, nothing sent: both arrivals are lost
    np.testing.assert_array_equal(cmdp.constraints[1].values[:, 0], np.arange(6))


def test_the_channel_starts_where_it_is_in_the_long_run():
    cmdp = wireless()
    for action in range(cmdp.actions):
        after = cmdp.initial @ cmdp.transitions[np.arange(cmdp.states) * cmdp.actions + action]
        np.testing.assert_allclose(after.reshape(-1, 4).sum(axis=0), 1 / 4)


# -- delivery --


def test_a_delivery_moves_slips_waits_and_ends_as_described():
    cmdp = delivery(rows=2, columns=3, slip=0.2, patience=10.0, slow=0.5, energy=4.0)
    P = np.asarray(cmdp.transitions.todense()).reshape(7, 8, 7)
    # From the middle of the lower row, slowly right: half of the time; sideways is up, or against the border
    assert P[4, 1] == pytest.approx([0.0, 0.045, 0.0, 0.0, 0.45 + 0.045, 0.36, 0.1], abs=1e-15)
    assert P[4, 5] == pytest.approx([0.0, 0.09, 0.0, 0.0, 0.09, 0.72, 0.1], abs=1e-15)  # fast
    assert (P[2, :, 6] == 1.0).all()  # the customer's cell: delivered
    assert (P[6, :, 6] == 1.0).all()
    energy = np.asarray(cmdp.constraints[0].values)
    assert energy[4].tolist() == [1.0] * 4 + [4.0] * 4
    assert not energy[[2, 6]].any()
    assert cmdp.initial[3] == 1.0


def test_a_delivery_without_slips_has_its_closed_form():
    """Fast all the way: the customer is still there after each of 3 steps."""
    cmdp = delivery(rows=2, columns=3, slip=0.0, patience=10.0, energy=2.0, budget=100.0)
    result = solve(cmdp)
    assert result.objective == pytest.approx(0.9**3, abs=1e-9)
    assert result.constraint_values[0] == pytest.approx(2.0 * (1.0 + 0.9 + 0.81), abs=1e-9)


def test_the_delivery_has_room_and_its_budget_binds():
    cmdp = delivery()
    result, free = solve(cmdp), solve(cmdp.with_limits(energy=None))
    assert result.objective < free.objective - 1e-3
    assert result.multipliers[0] > 1e-3
    assert margin(cmdp) > 1.0


# -- epidemic --


def test_an_epidemic_spreads_as_described():
    cmdp = epidemic(people=2, weeks=3, contacts=(0.5, 0.0), costs=(0.0, 1.0), recovery=0.6)
    P = np.asarray(cmdp.transitions).reshape(3, 2, 3)
    caught = 1.0 - np.exp(-0.25)  # with one of two infected
    assert P[1, 0] == pytest.approx([0.6 * (1 - caught), 0.6 * caught + 0.4 * (1 - caught), 0.4 * caught], abs=1e-15)
    assert P[2, 1] == pytest.approx([0.36, 0.48, 0.16], abs=1e-15)
    assert (P[0, :, 0] == 1.0).all()
    assert [c.stage for c in cmdp.constraints] == [None, 2]


def test_both_limits_of_the_epidemic_bind():
    cmdp = epidemic(people=12, weeks=10, beds=4)
    result = solve(cmdp)
    assert result.certificate.optimal(1e-6)
    assert (result.multipliers > 1e-3).any()
    free = evaluate(cmdp, solve(cmdp.with_limits(dict.fromkeys(cmdp.names))).policy)
    assert (free.constraint_values > cmdp.limits).all()
    assert margin(cmdp) > 1e-3
    # Weeks of overload are the sum over all weeks, the second limit is the last of them
    visits = evaluate(cmdp, result.policy).occupancy.sum(axis=2)
    assert result.constraint_values == pytest.approx([visits[:, 5:].sum(), visits[-1, 5:].sum()], abs=1e-9)


# -- grid --


def test_walls_and_borders_block_and_moves_slip_sideways():
    cmdp = grid(
        layout="""
        .#G
        S.!
        """,
        slip=0.2,
        visit_limit=0.1,
    )
    # The states in reading order: 0 top left, 1 goal, 2 start, 3 below the wall, 4 unsafe.
    moves = cmdp.transitions.toarray().reshape(5, 4, 5)
    up, right, down, left = range(4)
    np.testing.assert_allclose(moves[3, up], [0, 0, 0.1, 0.8, 0.1])  # the wall blocks
    np.testing.assert_allclose(moves[2, left], [0.1, 0, 0.9, 0, 0])  # the border blocks, and a slip to it too
    np.testing.assert_allclose(moves[2, right], [0.1, 0, 0.1, 0.8, 0])
    np.testing.assert_allclose(moves[0, down], [0.2, 0, 0.8, 0, 0])
    np.testing.assert_allclose(moves[1], np.tile([0, 1, 0, 0, 0], (4, 1)))  # the goal keeps the robot
    np.testing.assert_allclose(cmdp.objective[4], [0.8, 0.1, 0.0, 0.1])
    np.testing.assert_array_equal(cmdp.objective[1], 0.0)
    np.testing.assert_array_equal(cmdp.constraints[0].values[:, 0], [0, 0, 0, 0, 1])
    np.testing.assert_array_equal(cmdp.initial, [0, 0, 1, 0, 0])


def test_without_slip_the_shortest_way_is_taken():
    free = occupancy_lp(cmdp := grid(slip=0.0), signed_cost(cmdp))
    assert -free.fun == pytest.approx(0.95 ** (9 - 1))  # nine moves; the last one, at t = 8, reaches the goal


# -- maintenance --


def test_wear_breakdown_and_repair():
    cmdp = maintenance(levels=4, wear=(0.6, 0.2), breakdown=(0.4, 0.1), repair_chance=0.3, repair_cost=0.5)
    moves = cmdp.transitions.toarray().reshape(5, 3, 5)
    np.testing.assert_allclose(moves[0, 0], [0.4, 0.6, 0, 0, 0])  # a new machine does not break
    np.testing.assert_allclose(moves[2, 0], [0, 0, 0.9 * 0.4, 0.9 * 0.6, 0.1])  # 0.4 (2/4)² = 0.1
    np.testing.assert_allclose(moves[2, 1], [0, 0, 0.975 * 0.8, 0.975 * 0.2, 0.025])
    np.testing.assert_allclose(moves[3, 1, 3:], [(1 - 0.05625) * 0.8, (1 - 0.05625) * 0.2 + 0.05625])
    np.testing.assert_allclose(moves[3, 2], [1, 0, 0, 0, 0])
    np.testing.assert_allclose(moves[4, :2], [[0, 0, 0, 0, 1]] * 2)  # broken stays broken
    np.testing.assert_allclose(moves[4, 2], [0.3, 0, 0, 0, 0.7])
    np.testing.assert_allclose(cmdp.objective[[0, 4]], [[1.0, 0.6, -0.5], [0.0, 0.0, -0.5]])
    np.testing.assert_array_equal(cmdp.constraints[0].values, [[0, 0, 1]] * 4 + [[1, 1, 1]])


# -- inventory --


def test_a_period_of_the_store():
    cmdp = inventory(capacity=3, largest_order=2, demand=1.5, order_cost=5.0, unit_cost=1.0, holding_cost=0.2)
    p = [math.exp(-1.5) * 1.5**k / math.factorial(k) for k in range(3)]
    moves = cmdp.transitions.toarray().reshape(4, 3, 4)
    np.testing.assert_allclose(moves[1, 1], [1 - p[0] - p[1], p[1], p[0], 0])  # stock 2 before demand
    np.testing.assert_allclose(moves[3, 2], moves[3, 0])  # an order that does not fit
    np.testing.assert_allclose(moves[0, 0], [1, 0, 0, 0])
    left = 2 * p[0] + p[1]
    assert cmdp.objective[1, 1] == pytest.approx(5.0 + 1.0 + 0.2 * left)
    assert cmdp.objective[0, 0] == 0.0
    np.testing.assert_array_equal(cmdp.objective[2:, 2], [cmdp.objective[2, 1], cmdp.objective[3, 0]])  # what fits
    assert cmdp.constraints[0].values[1, 1] == pytest.approx((2 - left) / 1.5)


def test_a_store_that_never_runs_out_serves_all_the_demand():
    served = inventory(capacity=60, largest_order=60, demand=4.0).constraints[0].values
    np.testing.assert_allclose(served[:, 60], 1.0, atol=1e-12)


# -- refusals --


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (garnet, {"states": 1}, "states must be a whole number of at least 2, got 1"),
        (garnet, {"states": 2.5}, "states must be a whole number"),
        (garnet, {"actions": True}, "actions must be a whole number"),
        (garnet, {"actions": 1}, "actions must be a whole number of at least 2"),
        (garnet, {"successors": 0}, "successors must be a whole number of at least 1"),
        (garnet, {"states": 4, "successors": 5}, "successors must be at most states = 4"),
        (garnet, {"constraints": -1}, "constraints must be a whole number of at least 0"),
        (garnet, {"gamma": 1.0}, "gamma must be in"),
        (garnet, {"slack": 1.0}, "slack must lie strictly between 0 and 1"),
        (garnet, {"seed": -1}, "seed must be a whole number"),
        (garnet, {"states": 2, "successors": 2, "seed": 9}, "use another seed, or more states"),
        (two_queues, {"capacity": 0}, "capacity must be a whole number of at least 1"),
        (two_queues, {"arrivals": (0.5,)}, r"arrivals must hold 2 number\(s\), got 1"),
        (two_queues, {"arrivals": 0.5}, "arrivals must be a sequence of numbers"),
        (two_queues, {"arrivals": (0.5, -0.1)}, r"arrivals\[1\] must be at least 0"),
        (two_queues, {"speeds": (0.0,)}, "speeds must hold at least two numbers"),
        (two_queues, {"speeds": (0.0, 0.0)}, "one of them above zero"),
        (two_queues, {"power_limit": 0.0}, "power_limit must be above zero"),
        (two_queues, {"gamma": 1.0}, "per_step=True"),
        (wireless, {"buffer": 0}, "buffer must be a whole number"),
        (wireless, {"packets": 0}, "packets must be a whole number"),
        (wireless, {"gains": ()}, "gains must hold at least one"),
        (wireless, {"gains": (0.0, 1.0)}, "gains must be above zero"),
        (wireless, {"arrivals": (0.5, 0.4)}, "arrivals sums to 0.9, not 1"),
        (wireless, {"fading": 0.6}, "fading must be between 0 and 0.5"),
        (wireless, {"backlog_limit": -1.0}, "backlog_limit must be above zero"),
        (grid, {"rows": 2}, "rows must be a whole number of at least 3"),
        (grid, {"columns": 3}, "columns must be a whole number of at least 4"),
        (grid, {"slip": 1.5}, "slip must be between 0 and 1"),
        (grid, {"visit_limit": 0.0}, "visit_limit must be above zero"),
        (grid, {"layout": ""}, "the rows of the layout must be equally long"),
        (grid, {"layout": "S.\nG"}, r"lengths \[2, 1\]"),
        (grid, {"layout": "S.G?"}, r"the layout holds \['\?'\]"),
        (grid, {"layout": "S.SG"}, "the layout needs one S and at least one G, got 2 and 1"),
        (grid, {"layout": "S..."}, "got 1 and 0"),
        (maintenance, {"levels": 0}, "levels must be a whole number"),
        (maintenance, {"wear": (0.5, 1.5)}, r"wear\[1\] must be between 0 and 1"),
        (maintenance, {"repair_chance": 0.0}, "repair_chance must be above zero"),
        (maintenance, {"downtime_limit": 2.0}, "downtime_limit must be between 0 and 1"),
        (inventory, {"capacity": 0}, "capacity must be a whole number"),
        (inventory, {"largest_order": 0}, "largest_order must be a whole number"),
        (inventory, {"demand": 0.0}, "demand must be above zero"),
        (inventory, {"holding_cost": -1.0}, "holding_cost must be at least 0"),
        (inventory, {"fill_rate": 1.5}, "fill_rate must be between 0 and 1"),
    ],
)
def test_bad_parameters_are_refused(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(**arguments)
