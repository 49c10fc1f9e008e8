"""Frontiers of averages, totals and horizons against linear programs written here, and ranges of prices."""

import numpy as np
import pytest
from scipy.optimize import linprog

import cmdpkit as ck
from models import lp_optimum, random_model

STATES, ACTIONS, HORIZON = 5, 3, 6


def parts(seed):
    """Transitions between all states (S, A, S), a cost, and a usage that is cheap where the cost is high."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(0.7 * np.ones(STATES), (STATES, ACTIONS))
    cost = rng.uniform(size=(STATES, ACTIONS))
    usage = 1.0 - cost + 0.5 * rng.uniform(size=(STATES, ACTIONS))
    other = rng.uniform(size=(STATES, ACTIONS))
    return P, cost, usage, other


def program(flow, start, cost, rows, limits):
    """min cost·d over d ≥ 0 with flow·d = start and rows·d ≤ limits."""
    answer = linprog(cost, A_ub=rows, b_ub=limits, A_eq=flow, b_eq=start, method="highs")
    assert answer.status == 0, answer.message
    return answer.fun


def leaving():
    """(S, S · A) ones where a pair belongs to a state."""
    return np.kron(np.eye(STATES), np.ones(ACTIONS))


def average(seed):
    P, cost, usage, other = parts(seed)
    spare = 0.5 * (other.min(axis=1).max() + other.max())
    limits = [ck.AtMost(usage, 0.5, name="usage"), ck.AtMost(other, spare, name="other")]
    cmdp = ck.CMDP(P, cost=cost, constraints=limits, average=True)

    def optimum(limit):
        flow = np.vstack([leaving() - P.reshape(-1, STATES).T, np.ones(STATES * ACTIONS)])
        rows = np.stack([usage.ravel(), other.ravel()])
        return program(flow, np.append(np.zeros(STATES), 1.0), cost.ravel(), rows, [limit, spare])

    return cmdp, optimum


def total(seed):
    """The last state is the goal; every step leads there with probability 0.2 at least."""
    P, cost, usage, _ = parts(seed)
    P = 0.8 * P
    P[..., -1] += 0.2
    P[-1] = np.eye(STATES)[-1]
    cost[-1], usage[-1] = 0.0, 0.0
    cmdp = ck.CMDP(P, reward=-cost, constraints=[ck.AtMost(usage, 3.0, name="usage")], gamma=1, initial=0)

    def optimum(limit):
        pairs = (STATES - 1) * ACTIONS
        flow = (leaving() - P.reshape(-1, STATES).T)[:-1, :pairs]
        return -program(flow, np.eye(STATES - 1)[0], cost.ravel()[:pairs], usage.ravel()[None, :pairs], [limit])

    return cmdp, optimum


def horizon(seed):
    P, cost, usage, _ = parts(seed)
    cmdp = ck.CMDP(P, cost=cost, constraints=[ck.AtMost(usage, 3.0, name="usage")], horizon=HORIZON, initial=0)

    def optimum(limit):
        stay, move = np.eye(HORIZON), np.eye(HORIZON, k=-1)
        flow = np.kron(stay, leaving()) - np.kron(move, P.reshape(-1, STATES).T)
        start = np.zeros(HORIZON * STATES)
        start[0] = 1.0
        return program(flow, start, np.tile(cost.ravel(), HORIZON), np.tile(usage.ravel(), HORIZON)[None], [limit])

    return cmdp, optimum


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", [average, total, horizon])
def test_the_band_contains_the_program_of_every_criterion(make, seed):
    cmdp, optimum = make(seed)
    curve = ck.frontier(cmdp, "usage")
    assert curve.complete
    assert curve.limits.size >= 2
    wanted = np.linspace(curve.limits[0], curve.limits[-1], 9)[1:-1]
    given = ck.frontier(cmdp, "usage", wanted)
    assert given.complete
    for k, limit in enumerate(wanted):
        best = optimum(limit)
        slack = 1e-7 * max(1.0, abs(best))
        for low, high in (curve.at(limit), (given.lower[k], given.upper[k])):
            assert low - slack <= best <= high + slack
            assert high - low <= 1.001e-4 * max(1.0, abs(best))
    values = ck.evaluate(cmdp, given.policy(wanted[3]))
    assert values.objective == pytest.approx(given.objectives[3], rel=1e-6)
    assert values.constraint_values[0] <= wanted[3] + 1e-7
    # Tighter than the least limit nothing is possible
    with pytest.raises(AssertionError):
        optimum(float(curve.least[0]) - 1e-3)
    assert not np.isfinite(curve.at(float(curve.least[0]) - 1e-3)).any()


@pytest.mark.parametrize("seed", [0, 2, 5, 8, 13])
@pytest.mark.parametrize("found_alone", [True, False])
def test_a_price_predicts_the_optimum_in_its_range(seed, found_alone):
    """The tangent with a price is within `tol` of the LP's optimum wherever its range says so, and never better."""
    cmdp = random_model(seed, constraints=1 + seed % 2)
    curve = ck.frontier(cmdp, "c0")
    if not found_alone:
        inside = curve.limits[0] + np.array([0.1, 0.35, 0.6, 0.9]) * (curve.limits[-1] - curve.limits[0])
        curve = ck.frontier(cmdp, "c0", inside)
    sign, sense = cmdp.signs[0], -1.0 if cmdp.maximise else 1.0
    proved = curve.upper if cmdp.maximise else curve.lower
    widest = 0.0
    for limit, bound, price, ends in zip(curve.limits, proved, curve.prices, curve.ranges, strict=True):
        assert ends[0] - 1e-9 <= limit <= ends[1] + 1e-9
        for moved in np.linspace(*ends, 4):
            best = lp_optimum(cmdp.with_limits(c0=moved))[0]
            predicted = bound - sense * sign * price * (moved - limit)
            scale = max(1.0, abs(best))
            assert sense * (best - predicted) >= -1e-7 * scale
            assert sense * (best - predicted) <= (curve.tol + 1e-6) * scale
        widest = max(widest, ends[1] - ends[0])
    assert widest > 0.0


def test_a_range_ends_where_the_price_changes():
    """One state, three actions (cost, usage): (3, 0), (1, 1), (0, 3): the price falls from 2 to 1/2 at 1."""
    usage = ck.AtMost([[0.0, 1.0, 3.0]], 1.0, name="usage")
    cmdp = ck.CMDP(np.ones((1, 3, 1)), cost=[[3.0, 1.0, 0.0]], constraints=[usage], gamma=0.0)
    curve = ck.frontier(cmdp, "usage", [0.25, 0.75, 2.0, 2.5])
    np.testing.assert_allclose(curve.prices, [2.0, 2.0, 0.5, 0.5], rtol=1e-8)
    np.testing.assert_allclose(curve.ranges, [[0.25, 1.0]] * 2 + [[1.0, 2.5]] * 2, atol=1e-3)
