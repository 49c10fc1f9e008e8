"""Frontiers: the certified band against the occupancy LP, closed forms, and cases without room."""

import csv
import io
import json

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

import cmdpkit as ck
from cmdpkit.cli.main import cli
from cmdpkit.evaluation.backup import advantages
from cmdpkit.evaluation.gains import policy_system
from cmdpkit.exact.band import Band
from cmdpkit.exact.columns import ColumnSearch
from cmdpkit.exact.errors import policy_slack, sum_errors, sums_beside
from cmdpkit.exact.mdp import Oracle, minimise
from cmdpkit.exact.nearby import close_beside, moved
from cmdpkit.exact.search import steps
from cmdpkit.insight.line import envelope, sublevel
from cmdpkit.report import frontier_report
from models import lp_optimum, random_model, two_state

LP = 2e-8
"""What the LP solver may be off, relative."""


def assert_contains(curve, limit, optimum):
    slack = LP * max(1.0, abs(optimum))
    low, high = curve.at(limit)
    assert low - slack <= optimum <= high + slack
    between = [np.interp(limit, curve.limits, side) for side in (curve.lower, curve.upper)]
    assert between[0] - slack <= optimum <= between[1] + slack
    assert between[1] - between[0] <= 1.001 * curve.tol * max(1.0, abs(optimum))


@pytest.mark.parametrize("seed", range(24))
def test_the_band_contains_the_lp_everywhere(seed):
    """Random models with one to three limits of both senses, per step or not."""
    cmdp = random_model(seed, constraints=1 + seed % 3)
    curve = ck.frontier(cmdp, "c0")
    assert curve.complete
    assert curve.violation == 0.0
    assert (np.diff(curve.limits) > 0.0).all()
    assert (curve.lower <= curve.upper).all()
    for limit in np.linspace(curve.limits[0], curve.limits[-1], 52)[1:-1] if curve.limits.size > 1 else ():
        assert_contains(curve, limit, lp_optimum(cmdp.with_limits(c0=limit))[0])
    # Tighter than what is proved to be possible there is nothing, and the certificate says so
    sign = cmdp.signs[0]
    beyond = curve.least[0] - sign * 1e-3 * max(1.0, abs(curve.least[0]))
    assert not np.isfinite(curve.at(beyond)).any()
    with pytest.raises(AssertionError, match="infeasible"):
        lp_optimum(cmdp.with_limits(c0=beyond))
    nearly = curve.least[0] - sign * 1e-7 * max(1.0, abs(curve.least[0]))
    assert not np.isfinite(curve.at(nearly)).any()
    with pytest.raises(ValueError, match="no policy is known"):
        curve.policy(nearly)
    weights = curve.infeasibility
    assert (weights >= 0.0).all()
    margin = lp_minimum(cmdp.with_limits(c0=beyond), weights)
    assert margin > 0.0
    assert lp_optimum(cmdp.with_limits(c0=curve.least[1] + sign * 1e-6)) is not None


def lp_minimum(cmdp, weights):
    """min over policies of Σ y_i V_i, by the LP without limits."""
    table = (weights @ cmdp.costs[1:]).reshape(cmdp.states, cmdp.actions)
    free = cmdp.with_limits(dict.fromkeys(cmdp.names)).with_objective(cost=table)
    return lp_optimum(free)[0] - float(weights @ cmdp.offsets)


def test_a_closed_form():
    """V_r = 1/(1 − γ) + (1 − γ) b up to b = 1/(1 − γ²), the cost of always taking the risk; price 1 − γ."""
    curve = ck.frontier(two_state(gamma=0.9), "risk")
    most = 1.0 / (1.0 - 0.9**2)
    np.testing.assert_allclose(curve.limits, [0.0, most], atol=1e-7)
    np.testing.assert_allclose(curve.objectives, [10.0, 10.0 + 0.1 * most], rtol=1e-7)
    np.testing.assert_allclose(curve.prices[0], 0.1, rtol=1e-9)
    np.testing.assert_allclose(curve.ranges[0], [0.0, most], atol=1e-6)
    assert curve.at(2.0) == pytest.approx((10.2, 10.2), rel=1e-6)
    np.testing.assert_allclose(curve.least, 0.0, atol=1e-9)
    values = ck.evaluate(two_state(), curve.policy(2.0))
    assert values.constraint_values[0] <= 2.0 + 1e-9
    assert values.objective == pytest.approx(10.2, rel=1e-6)


def kinked():
    """One state, three actions (cost, usage): (3, 0), (1, 1), (0, 3). With γ = 0 the frontier has a kink at 1."""
    usage = ck.AtMost([[0.0, 1.0, 3.0]], 1.0, name="usage")
    return ck.CMDP(np.ones((1, 3, 1)), cost=[[3.0, 1.0, 0.0]], constraints=[usage], gamma=0.0)


def test_prices_jump_at_a_kink():
    curve = ck.frontier(kinked(), "usage")
    np.testing.assert_allclose(curve.limits, [0.0, 1.0, 3.0], atol=1e-8)
    np.testing.assert_allclose(curve.objectives, [3.0, 1.0, 0.0], atol=1e-7)
    np.testing.assert_allclose(curve.prices[:2], [2.0, 0.5], rtol=1e-8)
    np.testing.assert_allclose(curve.ranges[0], [0.0, 1.0], atol=1e-3)
    np.testing.assert_allclose(curve.ranges[1], [1.0, 3.0], atol=1e-3)


def test_rewards_and_at_least_turn_the_band_around():
    cost = kinked()
    table = -np.asarray(cost.constraints[0].values)
    mirrored = ck.CMDP(
        np.ones((1, 3, 1)), reward=-cost.objective, constraints=[ck.AtLeast(table, -1.0, name="usage")], gamma=0.0
    )
    one, other = ck.frontier(cost, "usage"), ck.frontier(mirrored, "usage")
    np.testing.assert_allclose(other.limits, -one.limits[::-1], atol=1e-9)
    np.testing.assert_allclose(other.lower, -one.upper[::-1], atol=1e-9)
    np.testing.assert_allclose(other.upper, -one.lower[::-1], atol=1e-9)
    np.testing.assert_allclose(other.objectives, -one.objectives[::-1], atol=1e-9)
    np.testing.assert_allclose(np.sort(other.prices[1:]), np.sort(one.prices[:2]), rtol=1e-9)


def test_a_limit_that_never_binds_is_a_point():
    curve = ck.frontier(two_state().with_objective(cost="risk"), "risk")
    np.testing.assert_allclose(curve.limits, 0.0, atol=1e-8)
    np.testing.assert_allclose(curve.objectives, 0.0, atol=1e-8)


def test_a_cost_that_no_policy_changes_has_a_single_limit():
    constant = ck.AtMost(np.ones((1, 2)), 5.0, name="time")
    cmdp = ck.CMDP(np.ones((1, 2, 1)), reward=[[0.0, 1.0]], constraints=[constant], gamma=0.5)
    curve = ck.frontier(cmdp, "time")
    np.testing.assert_allclose(curve.limits, [2.0], atol=1e-8)
    np.testing.assert_allclose(curve.objectives, [2.0], atol=1e-8)
    assert not np.isfinite(curve.at(1.9)).any()
    assert curve.at(7.0) == pytest.approx((2.0, 2.0))


def test_limits_that_leave_no_room_are_met_to_the_tolerance():
    """Two limits that make an equality: no policy is strictly inside."""
    equal = [[1.0, 0.0, 0.5]]
    limits = [ck.AtMost(equal, 0.5, name="most"), ck.AtLeast(equal, 0.5, name="least")]
    usage = ck.AtMost([[0.0, 1.0, 3.0]], 1.0, name="usage")
    cmdp = ck.CMDP(np.ones((1, 3, 1)), cost=[[3.0, 1.0, 0.0]], constraints=[*limits, usage], gamma=0.0)
    curve = ck.frontier(cmdp, "usage")
    # Mixtures of (½, ½, 0) with usage ½ and cost 2, and (0, 0, 1) with usage 3 and cost 0
    assert 0.0 < curve.violation <= curve.tol
    assert curve.complete
    np.testing.assert_allclose(curve.limits, [0.5, 3.0], atol=1e-3)
    proved, attained = curve.least
    assert 0.499999 < proved <= attained <= curve.limits[0]
    for x in np.linspace(0.51, 3.0, 9):
        assert np.mean(curve.at(x)) == pytest.approx(2.0 - 0.8 * (x - 0.5), abs=1e-3)


@pytest.mark.parametrize("seed", [1, 6, 9])
def test_given_limits_and_those_that_cannot_be_met(seed):
    cmdp = random_model(seed, constraints=2)
    curve = ck.frontier(cmdp, "c0")
    room = curve.limits[-1] - curve.limits[0]
    wanted = np.linspace(curve.limits[0] - 0.3 * room, curve.limits[-1] + 0.3 * room, 9)
    given = ck.frontier(cmdp, "c0", wanted[::-1])
    assert given.complete
    np.testing.assert_array_equal(given.limits, wanted)
    outside = cmdp.signs[0] * wanted < cmdp.signs[0] * curve.least[0]
    np.testing.assert_array_equal(~given.feasible, outside)
    assert outside.any()
    assert np.isnan(given.objectives[outside]).all()
    assert lp_minimum(cmdp.with_limits(c0=wanted[outside][0]), given.infeasibility) > 0.0 or outside.sum() > 1
    for x, low, high in zip(wanted[~outside], given.lower[~outside], given.upper[~outside], strict=True):
        optimum = lp_optimum(cmdp.with_limits(c0=x))[0]
        assert low - 1e-7 <= optimum <= high + 1e-7
        assert high - low <= 1.001e-4 * max(1.0, abs(optimum))


@pytest.mark.parametrize("seed", [0, 4, 7])
def test_a_surface_contains_the_lp(seed):
    cmdp = random_model(seed, constraints=3)
    surface = ck.frontier(cmdp, ("c0", "c2"), points=5)
    assert surface.complete
    assert surface.feasible.any()
    for j, k in np.ndindex(5, 5):
        limits = {"c0": surface.limits[0][j], "c2": surface.limits[1][k]}
        if surface.infeasible[j, k]:
            with pytest.raises(AssertionError, match="infeasible"):
                lp_optimum(cmdp.with_limits(limits))
            continue
        optimum = lp_optimum(cmdp.with_limits(limits))[0]
        slack = 1e-7 * max(1.0, abs(optimum))
        assert surface.lower[j, k] - slack <= optimum <= surface.upper[j, k] + slack
    x, y = (float(axis[2:4].mean()) for axis in surface.limits)
    low, high = surface.at(x, y)
    assert low <= high
    values = ck.evaluate(cmdp, surface.policy(x, y))
    assert (cmdp.signs * values.constraint_values <= cmdp.with_limits(c0=x, c2=y).offsets + 1e-6).all()


def test_other_limits_that_conflict_leave_nothing():
    cmdp = kinked()
    impossible = ck.AtMost(np.ones((1, 3)), 0.5, name="impossible")
    model = ck.CMDP(np.ones((1, 3, 1)), cost=cmdp.objective, constraints=[*cmdp.constraints, impossible], gamma=0.0)
    curve = ck.frontier(model, "usage")
    assert curve.limits.size == 0
    np.testing.assert_allclose(curve.infeasibility, [0.0, 1.0])
    assert "other limits cannot" in str(curve)
    with pytest.raises(ValueError, match="no policy is known"):
        curve.policy(1.0)


def test_errors_of_columns_are_rigorous():
    """Against values in extended precision, for choices and mixtures, with values that are off by 1e-6."""
    cmdp = random_model(11, constraints=2, states=8, gamma=0.9, sparse=False)
    rng = np.random.default_rng(0)
    for pi in (rng.dirichlet(np.ones(cmdp.actions), 8), np.eye(cmdp.actions)[rng.integers(cmdp.actions, size=8)]):
        P = np.einsum("sa,sat->st", pi, cmdp.transitions.reshape(8, cmdp.actions, 8))
        cost = np.einsum("isa,sa->si", cmdp.costs.reshape(-1, *pi.shape), pi)
        exact = np.linalg.solve(np.eye(8) - 0.9 * P, cost)
        noisy = exact + 1e-6 * rng.normal(size=exact.shape)
        given = {"pi": pi} if pi.max() < 1.0 else {"choice": pi.argmax(axis=1)}
        errors = sum_errors(cmdp, noisy, **given)
        off = np.abs(cmdp.initial @ (noisy - exact))
        assert (off <= errors).all()
        assert (errors <= 1e-4).all()
        again = sum_errors(cmdp, noisy, pi=pi, table=advantages(cmdp, noisy))
        assert (off <= again).all()
        np.testing.assert_allclose(again, errors, rtol=1e-6)


@pytest.mark.parametrize("wrong", [0.0, 1e-6, 1e-3])
def test_sums_beside_a_policy_are_rigorous(wrong):
    """Values of one policy and visits of another, perhaps wrong, give the sums of the other within their errors."""
    cmdp = random_model(12, constraints=2, states=8, gamma=0.9, sparse=False)
    rng = np.random.default_rng(1)
    pi = rng.dirichlet(np.ones(cmdp.actions), 8)
    near = 0.99 * pi + 0.01 * rng.dirichlet(np.ones(cmdp.actions), 8)
    values, other = (policy_system(cmdp, p).state_values(cmdp.pairs.expect(p, cmdp.costs)) for p in (pi, near))
    system = policy_system(cmdp, near)
    visits = system.state_occupancy() * (1.0 + wrong * rng.normal(size=8))
    change = cmdp.pairs.expect(near, advantages(cmdp, values).T)
    entered, slack = system.flow(visits), policy_slack(cmdp, near)
    sums, errors = sums_beside(cmdp, values, change, visits, entered, slack)
    off = np.abs(sums - cmdp.initial @ other)
    assert (off <= errors).all()
    # Two small numbers multiply: how wrong the visits are, and how far apart the policies
    apart = np.abs(change).max(axis=0)
    assert (errors <= 1e-11 + 1e3 * wrong * apart).all()
    if wrong:
        assert (off >= 1e-4 * errors).any()


def test_a_moved_search_keeps_columns_and_bounds():
    cmdp = random_model(6, constraints=2)
    search = ColumnSearch(cmdp, 1e-8, rigorous=True)
    for _ in steps(search):
        if search.upper - search.bound < 1e-9:
            break
    sums = [values + np.append(0.0, cmdp.offsets) for values in search.values]
    other = cmdp.with_limits(c0=cmdp.limits[0] + 0.2 * cmdp.signs[0])
    again = moved(search, other, sums)
    for column, values in zip(again.columns, again.values, strict=True):
        policy = ck.TabularPolicy.over(cmdp.pairs, again.probabilities(column))
        np.testing.assert_allclose(
            other.user_constraint_values(values[1:]), ck.evaluate(other, policy).constraint_values, atol=1e-6
        )


def test_the_envelope_of_lines():
    """2 − 2x, 1.5 − x and 0.5: kinks at 0.5 and 1; a line below all of them is not used."""
    values, prices = np.array([2.0, 0.0, 0.5, 1.5]), np.array([2.0, 1.5, 0.0, 1.0])
    kinks, lines = envelope(values, prices, 0.0, 3.0)
    np.testing.assert_allclose(kinks, [0.0, 0.5, 1.0, 3.0])
    assert lines == [0, 3, 2]
    assert envelope(values, prices, 2.0, 2.0)[0] == [2.0]


def test_where_interpolated_values_are_negative():
    xs = np.array([0.0, 1.0, 2.0, 3.0])
    assert sublevel(xs, np.array([1.0, -1.0, -1.0, 3.0])) == pytest.approx((0.5, 2.25))
    assert sublevel(xs, np.array([-1.0, -1.0, -1.0, -3.0])) == (0.0, 3.0)
    assert sublevel(xs, np.array([1.0, 2.0, 3.0, 4.0])) == (0.0, 0.0)


def test_figures_of_the_command_line_have_formats(tmp_path):
    arguments = ["frontier", "paper", "--limit", "utility", "--limits", "2.5,3"]
    done = CliRunner().invoke(cli, [*arguments, "--plot", str(tmp_path / "curve"), "--format", "pdf,svg"])
    assert done.exit_code == 0, done.output
    assert {path.name for path in tmp_path.iterdir()} == {"curve.pdf", "curve.svg"}
    assert "shadow price" in (tmp_path / "curve.svg").read_text()
    with pytest.raises(ValueError, match="needs --plot"):
        CliRunner().invoke(cli, [*arguments, "--format", "pdf"], catch_exceptions=False)


def test_tables_files_and_plots(tmp_path):
    curve = ck.frontier(kinked(), "usage", [-1.0, 0.5, 2.0])
    curve.to_csv(tmp_path / "curve.csv")
    with open(tmp_path / "curve.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["feasible"] for row in rows] == ["False", "True", "True"]
    assert [float(row["objective"]) for row in rows[1:]] == pytest.approx([2.0, 0.5])
    assert rows[0]["objective"] == ""
    assert "infeasible" in curve.table()
    plain = json.loads(json.dumps(curve.to_dict()))
    assert plain["points"][1]["price"] == pytest.approx(2.0)
    assert isinstance(plain["solves"], int)
    ck.frontier(kinked(), "usage").plot(tmp_path / "curve.png")
    surface = ck.frontier(random_model(4, constraints=3), ("c0", "c1"), points=3)
    surface.plot(tmp_path / "surface.png")
    surface.to_csv(tmp_path / "surface.csv")
    assert len((tmp_path / "surface.csv").read_text().splitlines()) == 10
    assert "c0" in str(surface)
    for name in ("curve.png", "surface.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_a_time_limit_leaves_what_is_proved():
    cmdp = random_model(4, constraints=3)
    curve = ck.frontier(cmdp, "c0", time_limit=0.0)
    assert not curve.complete
    low, high = curve.at(cmdp.limits[0])
    assert low <= lp_optimum(cmdp)[0] <= high


@pytest.mark.parametrize(
    ("arguments", "settings", "error", "message"),
    [
        (("power",), {}, ValueError, "no constraint 'power'; the model has 'usage'"),
        ((("usage", "usage"),), {}, ValueError, "one limit or two different ones"),
        (("usage",), {"tol": 0.0}, ValueError, "tol must be positive"),
        ((0,), {}, TypeError, "limit must be the name of a limit, or two names, not 0"),
        (("usage", 3.0), {}, TypeError, "limits must be a list"),
        (("usage", []), {}, ValueError, "must not be empty"),
        (("usage", [np.nan]), {}, ValueError, "a limit of 'usage' must be finite"),
        (("usage",), {"points": 1}, ValueError, "points"),
        (("usage",), {"time_limit": -1.0}, ValueError, "time_limit"),
    ],
)
def test_bad_arguments_are_refused(arguments, settings, error, message):
    with pytest.raises(error, match=message):
        ck.frontier(kinked(), *arguments, **settings)


def test_models_of_extreme_scale_are_refused():
    with pytest.raises(ValueError, match=r"the objective has costs of size 3.0e\+90, too large.*divide them"):
        ck.frontier(kinked().with_objective(cost=1e90 * kinked().objective), "usage")
    tiny = ck.AtMost([[0.0, 1e-80, 3e-80]], 1e-80, name="usage")
    small = ck.CMDP(np.ones((1, 3, 1)), cost=kinked().objective, constraints=[tiny], gamma=0.0)
    with pytest.raises(ValueError, match=r"constraint 'usage' has costs of size 3.0e-80, too small.*by 1e-80"):
        ck.diagnose(small)


@pytest.mark.parametrize("seed", [2, 23, 40, 58])
def test_limits_alone_are_met_strictly(seed):
    """Where all columns lie on the limits or beyond, policies inside are found: nothing is relaxed or undecided."""
    cmdp = random_model(seed, constraints=1 + seed % 3)
    curve = ck.frontier(cmdp, "c0")
    wanted = curve.limits[0] + np.array([0.03, 0.4, 0.8]) * (curve.limits[-1] - curve.limits[0])
    given = ck.frontier(cmdp, "c0", wanted)
    assert given.complete
    assert given.feasible.all()
    assert given.violation == 0.0
    for limit, low, high in zip(wanted, given.lower, given.upper, strict=True):
        optimum = lp_optimum(cmdp.with_limits(c0=limit))[0]
        assert low - 1e-7 * max(1.0, abs(optimum)) <= optimum <= high + 1e-7 * max(1.0, abs(optimum))


def test_an_oracle_may_start_from_any_values():
    """From the values of another policy, or from numbers without meaning, the minimum is the same."""
    cmdp = random_model(6, constraints=2)
    rng = np.random.default_rng(0)
    weights = np.append(1.0, rng.uniform(size=cmdp.num_rows))
    best = minimise(cmdp, weights)
    for guess in (rng.normal(size=(cmdp.states, weights.size)), np.zeros((cmdp.states, weights.size))):
        oracle = Oracle(cmdp, choice=np.zeros(cmdp.states, dtype=np.int32))
        found = oracle.minimise(weights, guess=guess)
        assert found.bound == pytest.approx(best.bound, rel=1e-9, abs=1e-9)
        policy = ck.TabularPolicy.over(cmdp.pairs, cmdp.pairs.one_hot(found.choice))
        exact = ck.evaluate(cmdp, policy)
        np.testing.assert_allclose(cmdp.user_constraint_values(found.values[1:]), exact.constraint_values, atol=1e-9)


@pytest.mark.parametrize(
    ("average", "factors", "method"),
    [(False, False, None), (False, False, "sweeps"), (False, True, None), (True, False, None)],
)
@pytest.mark.parametrize("seed", range(12))
def test_a_glance_is_a_bound_as_near_as_it_says(seed, average, factors, method):
    """From the values of the minimum itself and of policies farther and farther away from it."""
    cmdp = ck.problems.garnet(30, constraints=2, gamma=0.8, seed=seed)
    cmdp = cmdp.with_criterion(average=True) if average else cmdp
    rng = np.random.default_rng(seed)
    weights = np.append(1.0, rng.uniform(size=2))
    best = minimise(cmdp, weights)
    least, found = float(weights @ best.values), 0
    for share in (0.0, 0.01, 0.1, 1.0):
        pi = (1.0 - share) * cmdp.pairs.one_hot(best.choice) + share * cmdp.pairs.uniform()
        system = policy_system(cmdp, pi)
        values = system.state_values(cmdp.pairs.expect(pi, cmdp.costs))
        now = float(weights @ (cmdp.initial @ values - np.append(0.0, cmdp.offsets)))
        for gap, excess in ((1e-3, 1e-9), (1e-12, 2.0 * (now - least) + 1e-6)):
            oracle = Oracle(cmdp)
            oracle.plan.method = method  # where chains are swept, greedy policies are followed between backups
            bound = oracle.glance(weights, values, gap, excess, system if factors else None)
            if bound is not None:
                found += 1
                assert bound <= least + 1e-12 * max(1.0, abs(least))
                assert least - bound <= gap or now - bound <= excess
    assert found >= 3


def test_a_glance_gives_up_where_backups_are_slow():
    """A corridor of 60 states in which the end counts: a backup moves what is known by one state."""
    move = np.zeros((60, 2, 60))
    move[range(60), 0, [*range(1, 60), 59]] = move[range(60), 1, range(60)] = 1.0
    cost = np.zeros((60, 2))
    cost[59] = 1.0
    cmdp = ck.CMDP(move, cost=cost, constraints=[ck.AtMost(np.zeros((60, 2)), 1.0)], gamma=0.999, initial=0)
    forward = np.zeros(60, dtype=np.int32)
    values = policy_system(cmdp, choice=forward).state_values(cmdp.costs[:, cmdp.pairs.rows(forward)].T)
    assert Oracle(cmdp).glance(np.array([1.0, 0.0]), values, 1e-3, 1e-3) is None
    assert minimise(cmdp, np.array([1.0, 0.0])).bound == pytest.approx(0.0, abs=1e-6)  # whoever stays pays nothing


def test_a_glance_with_factors_sees_far():
    """Two queues mix slowly. With its factors, a policy that is too fast in a fifth of the states proves a bound."""
    cmdp = ck.problems.two_queues(capacity=14, arrivals=(0.45, 0.35), gamma=0.999)
    weights = np.append(1.0, np.ones(cmdp.num_rows))
    best = minimise(cmdp, weights)
    choice = best.choice.copy()
    choice[::5] = cmdp.actions - 1
    system = policy_system(cmdp, choice=choice)
    values = system.state_values(cmdp.costs[:, cmdp.pairs.rows(choice)].T)
    least, gap = float(weights @ best.values), 1e-3
    assert float(weights @ (cmdp.initial @ values - np.append(0.0, cmdp.offsets))) > least + 100.0 * gap
    assert Oracle(cmdp).glance(weights, values, gap, gap) is None
    bound = Oracle(cmdp).glance(weights, values, gap, gap, system)
    assert least - gap <= bound <= least + 1e-9 * abs(least)


def test_a_mixture_that_is_as_good_as_optimal_is_not_looked_for_again(monkeypatch):
    monkeypatch.setattr("cmdpkit.exact.band.SETTLED", 1.0)
    cmdp = ck.problems.garnet(states=30, actions=4, constraints=2, gamma=0.9)
    band = Band(cmdp, 1e-6, [0])
    offsets = cmdp.offsets.copy()
    band.improve(offsets)
    found = band.upper(offsets)
    band.improve(offsets + np.array([0.3, 0.0]))  # more columns
    again = band.upper(offsets)
    assert len(again.weights) == len(band.sums) > len(found.weights)
    assert again.value == found.value
    monkeypatch.setattr("cmdpkit.exact.band.SETTLED", -1.0)
    assert band.upper(offsets).value == pytest.approx(found.value, rel=1e-6)


def test_twenty_limits_cost_a_few_policies_each():
    """A search per limit took five policies each and more; with bounds from backups it is two or three."""
    cmdp = ck.problems.garnet(80, constraints=2, seed=7)
    curve = ck.frontier(cmdp, "cost 1", tol=1e-3)
    given = ck.frontier(cmdp, "cost 1", np.linspace(curve.limits[0], curve.limits[-1], 20))
    assert given.complete
    assert len(given.band.sums) <= 70


def test_a_limit_is_closed_beside_a_blend(monkeypatch):
    """A blend that is optimal for limits nearby has one beside it that is optimal for these, without a question."""
    before, after = [], []

    def watched(search, room=0.0):
        view, known, calls = search.view, len(search.values), search.oracle_calls
        close_beside(search, room)
        assert search.oracle_calls == calls
        if len(search.values) > known:
            lagrangian = search.values[-1][0] + search.multipliers @ search.values[-1][1:]
            assert lagrangian - search.bound <= 1.5 * search.goal
            before.append((view.values[1:] / search.scales[1:]).max())
            after.append((search.values[-1][1:] / search.scales[1:]).max())

    monkeypatch.setattr("cmdpkit.exact.band.close_beside", watched)
    cmdp = ck.problems.garnet(300, constraints=2, seed=7)
    assert ck.frontier(cmdp, "cost 1", np.linspace(5.0, 8.0, 12)).complete
    assert len(after) >= 4
    assert np.max(after) < 0.2 * np.max(before)


def test_a_policy_inside_the_limits_is_found_beside_one_that_misses_them(monkeypatch):
    """Near its tightest limit the columns of two queues meet the other limit only to `tol`, until one keeps away."""
    monkeypatch.setattr("cmdpkit.exact.band.STEEPER", ())  # no higher prices
    cmdp = ck.problems.two_queues(capacity=14, arrivals=(0.45, 0.35), gamma=0.999)
    ends = ck.frontier(cmdp, "power", tol=0.05).limits[[0, -1]]
    curve = ck.frontier(cmdp, "power", np.linspace(*ends, 22)[1:-1])
    assert curve.complete
    assert curve.violation == 0.0
    usage = ck.evaluate(cmdp, curve.policy(curve.limits[0])).constraint_values
    assert (usage < [curve.limits[0], cmdp.limits[1]]).all()
    monkeypatch.setattr("cmdpkit.exact.band.INWARD", 0.0)
    assert ck.frontier(cmdp, "power", curve.limits).violation > 0.0


def shown(found, width):
    screen = io.StringIO()
    Console(file=screen, width=width, color_system=None).print(frontier_report(found))
    return screen.getvalue()


def test_tables_show_no_rounding_noise():
    text = str(ck.frontier(kinked(), "usage"))
    assert "e-1" not in text.split("the optimum")[0]
    assert "0 can be met, and it is proved that less than 0 cannot" in text
    assert "-0" not in text
    impossible = kinked().with_limits(usage=-1.0)
    assert "<= 0" in str(ck.diagnose(impossible))
    touched = str(ck.diagnose(kinked().with_limits(usage=0.0)))
    assert "margin of 0\n" in touched
    assert "e-1" not in touched


def test_numbers_of_small_costs_are_not_noise():
    """The same model with costs of 1e-12: its numbers are small, and all there."""
    usage = ck.AtMost([[0.0, 1e-12, 3e-12]], 1e-12, name="usage")
    cmdp = ck.CMDP(np.ones((1, 3, 1)), cost=[[3.0, 1.0, 0.0]], constraints=[usage], gamma=0.0)
    assert "1e-12" in ck.frontier(cmdp, "usage", [1e-12, 2e-12]).table()


@pytest.mark.parametrize("size", [1.0, 1e6])
@pytest.mark.parametrize("limit", [0.0, 1.0, 1e3])
def test_a_limit_on_costs_that_are_zero_changes_nothing(size, limit):
    """It varies, or it stands beside one that does: exactly met at 0, where other limits would have no room."""
    model = random_model(4, constraints=1)
    nothing = ck.AtMost(np.zeros((model.states, model.actions)), limit, name="nothing")
    kind = {"reward" if model.maximise else "cost": size * np.asarray(model.objective)}
    limits = [*model.constraints, nothing]
    cmdp = ck.CMDP(model.transitions, constraints=limits, gamma=model.gamma, initial=model.initial, **kind)
    optimum = size * lp_optimum(model)[0]
    for curve in (ck.frontier(cmdp, "nothing"), ck.frontier(cmdp, "nothing", [0.0, 2.0])):
        assert curve.complete
        np.testing.assert_allclose(curve.objectives, optimum, rtol=2e-4)
    beside = ck.frontier(cmdp, "c0")
    assert beside.complete
    assert beside.violation == 0.0
    assert not ck.frontier(cmdp, "nothing", [-1e-13]).feasible.any()


def test_no_digits_are_lost_on_a_narrow_terminal():
    curve = ck.frontier(random_model(6, constraints=2), "c0")
    wide = shown(curve, 200)
    for width in (80, 60):
        narrow = shown(curve, width)
        assert "…" not in narrow
        assert sorted(filter(str.isdigit, narrow)) == sorted(filter(str.isdigit, wide))


def test_a_frontier_without_points_says_why():
    impossible = ck.AtMost(np.ones((1, 3)), 0.5, name="impossible")
    limits = [*kinked().constraints, impossible]
    model = ck.CMDP(np.ones((1, 3, 1)), cost=kinked().objective, constraints=limits, gamma=0.0)
    assert str(ck.frontier(model, "usage")).startswith("no value of 'usage' can be met, because the other limits")
    assert "within the bounds" not in str(ck.frontier(model, "usage", [1.0, 2.0]))
    assert "none of these limits can be met" in str(ck.frontier(model, "usage", [1.0, 2.0]))
    assert "the time is up" in str(ck.frontier(kinked(), "usage", time_limit=0.0))


def test_actions_that_are_not_available_stay_out():
    """The kinked model again, with a fourth action that would be free: it is not available."""
    usage = ck.AtMost([[0.0, 1.0, 3.0, 0.0]], 1.0, name="usage")
    mask = [[True, True, True, False]]
    cmdp = ck.CMDP(np.ones((1, 4, 1)), cost=[[3.0, 1.0, 0.0, 0.0]], constraints=[usage], gamma=0.0, available=mask)
    one, other = ck.frontier(cmdp, "usage"), ck.frontier(kinked(), "usage")
    np.testing.assert_allclose(one.limits, other.limits, atol=1e-9)
    np.testing.assert_allclose(one.upper, other.upper, atol=1e-9)
    assert one.policy(2.0).probabilities[0, 3] == 0.0
    found = ck.diagnose(cmdp.with_limits(usage=-1.0))
    assert found.relaxations["usage"].attained == pytest.approx(0.0, abs=1e-9)
    first = ck.solve(cmdp)
    assert ck.solve(cmdp.with_limits(usage=2.0), "pmd-pd", start=first).objective == pytest.approx(0.5, abs=1e-5)
    with pytest.raises(ValueError, match="other available actions"):
        ck.solve(cmdp, start=ck.solve(ck.CMDP(np.ones((1, 4, 1)), cost=np.zeros((1, 4)), gamma=0.0)))
