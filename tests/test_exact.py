"""Parts of the exact finish by hand: rigorous bounds, small programs, the local dual, compiled kernels, LP units."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import nnls

import cmdpkit as ck
from cmdpkit.evaluation import backup, bounds, kernels
from cmdpkit.evaluation.system import PolicySystem
from cmdpkit.exact import least_squares, linprog
from cmdpkit.exact.answer import best_policy
from cmdpkit.exact.columns import ColumnSearch
from cmdpkit.exact.least_squares import level_point, nonnegative_least_squares
from cmdpkit.exact.local import Blend, LocalDual, Viewpoint
from cmdpkit.exact.master import best_mixture
from cmdpkit.exact.mdp import minimise
from cmdpkit.exact.slater import least_miss
from cmdpkit.model import Pairs
from models import random_model, two_state

# -- bounds ------------------------------------------------------------------------------------------------------------


def rational_value(cmdp, weights):
    """V of a chain without choice in exact arithmetic, by Gaussian elimination: initial @ (I − γP)⁻¹ c − offsets."""
    n = cmdp.states
    gamma, w = Fraction(cmdp.gamma), [Fraction(float(x)) for x in weights]
    cost = [sum(w[i] * Fraction(float(cmdp.costs[i, s])) for i in range(len(w))) for s in range(n)]
    rows = [
        [Fraction(int(s == t)) - gamma * Fraction(float(cmdp.transitions[s, t])) for t in range(n)] + [cost[s]]
        for s in range(n)
    ]
    for k in range(n):
        rows[k] = [x / rows[k][k] for x in rows[k]]
        for j in range(n):
            if j != k:
                rows[j] = [x - rows[j][k] * y for x, y in zip(rows[j], rows[k], strict=True)]
    value = sum(Fraction(float(p)) * row[-1] for p, row in zip(cmdp.initial, rows, strict=True))
    return value - sum(Fraction(float(x)) * Fraction(float(b)) for x, b in zip(weights[1:], cmdp.offsets, strict=True))


def chain(seed, excess=0.0, gamma=0.9, limit=1.0):
    """A chain of five states without choice; the row sums differ from 1 by up to `excess`."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(5), size=(5, 1)) * (1.0 + excess * rng.choice([-1.0, 1.0], size=(5, 1, 1)))
    P[0] *= (1.0 - excess) / P[0].sum()
    P[1] *= (1.0 + excess) / P[1].sum()
    limits = [ck.AtMost(rng.normal(size=(5, 1)), limit)]
    return ck.CMDP(P, cost=rng.normal(size=(5, 1)), constraints=limits, gamma=gamma, initial=rng.dirichlet(np.ones(5)))


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize(("excess", "gamma"), [(0.0, 0.9), (9e-9, 0.9), (9e-9, 0.9999)])
def test_a_bound_is_below_the_exact_value(seed, excess, gamma):
    """In rational arithmetic, for the exact values as a guess, where every last bit could spoil it."""
    cmdp = chain(seed, excess, gamma)
    weights = np.array([1.0, 0.3])
    cost = weights @ cmdp.costs
    guess = np.linalg.solve(np.eye(5) - gamma * cmdp.transitions, cost)
    truth = rational_value(cmdp, weights)
    for value in (guess, guess + 1.0, guess - 1.0, 0.0 * guess):
        assert Fraction(bounds.macqueen_bound(cmdp, weights, value)) <= truth
    assert bounds.macqueen_bound(cmdp, weights, guess) == pytest.approx(float(truth), rel=1e-5)


def test_the_bound_by_hand():
    """One state: TV = c + γV, D = TV − V, bound TV + γ/(1 − γ) D − λ b, less rounding; exact here for any V."""
    cmdp = ck.CMDP(np.ones((1, 1, 1)), cost=[[3.0]], constraints=[ck.AtMost([[2.0]], 5.0)], gamma=0.5)
    for value in (0.0, 7.0, -100.0):
        # (3 + 4·2)/(1 − 0.5) − 4·5
        found = bounds.macqueen_bound(cmdp, np.array([1.0, 4.0]), np.array([value]))
        assert found == pytest.approx(2.0, abs=1e-11)
        assert found < 2.0


def test_rounding_is_taken_off_in_its_full_size():
    """By hand: n terms in a backup, each wrong by eps of the largest number, and 1/(1 − γ) such steps."""
    cmdp, weights = chain(0), np.array([1.0, 0.3])
    value = np.full(5, 1e6)
    found = backup.bellman(cmdp, weights @ cmdp.costs, value, np.zeros(5, dtype=np.int32))
    eps = np.finfo(float).eps
    magnitude = float(weights @ cmdp.cost_sizes) + 1e6
    plain = float(cmdp.initial @ found.values) + 0.9 / 0.1 * found.lowest - 0.3 * cmdp.offsets[0]
    allowed = plain - bounds.bound_from_backup(cmdp, weights, value, found)
    least = 5 * eps * magnitude  # a sum of five successors
    # one backup, those after it (γ/(1 − γ) of them), and the sum over five first states
    assert allowed >= (1.0 + 9.0 + 1.0) * least
    assert allowed <= 10.0 * (1.0 + 9.0 + 1.0) * least
    # A limit of 1e6 is subtracted at the end, and may take the last digits of small values with it
    large, zero = chain(0, limit=1e6), np.zeros(5)
    found = backup.bellman(large, weights @ large.costs, zero, np.zeros(5, dtype=np.int32))
    plain = float(large.initial @ found.values) + 0.9 / 0.1 * found.lowest - 0.3 * 1e6
    assert plain - bounds.bound_from_backup(large, weights, zero, found) >= eps * 0.3e6


def test_an_initial_distribution_that_sums_to_nearly_one():
    """The tail counts as often as there is mass to start with."""
    P = np.ones((1, 1, 1))
    less, more = (ck.CMDP(P, cost=[[1.0]], gamma=0.999, initial=[1.0 + d]) for d in (-9e-9, 9e-9))
    for cmdp in (less, more):
        exact = float(cmdp.initial[0]) / (1.0 - 0.999)
        found = bounds.macqueen_bound(cmdp, np.ones(1), np.zeros(1))
        assert found <= exact
        assert found == pytest.approx(exact, rel=1e-10)


# -- compiled kernels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [2, 4, 6])
def test_compiled_kernels_do_what_numpy_does(columns):
    rng = np.random.default_rng(columns)
    S, A, gamma = 7, 3, 0.9
    P = np.where(rng.random((S * A, S)) < 0.5, rng.random((S * A, S)), 0.0)
    P[:, 0] += 0.1
    P /= P.sum(axis=1, keepdims=True)
    matrix = backup.parts(sp.csr_array(P))
    values, cost = rng.normal(size=(S, columns)), rng.normal(size=(S * A, columns))
    new = cost + gamma * P @ values
    old = np.repeat(values, A, axis=0)
    out, low, high = np.empty((S * A, columns)), np.empty(columns), np.empty(columns)
    kernel = {2: kernels.ahead_two, 4: kernels.ahead_four, 6: kernels.ahead_many}[columns]
    heads = np.arange(S + 1) * A
    kernel(heads, *matrix, cost, gamma, values, values, 1.0, out, low, high, 0, S)
    np.testing.assert_allclose(out, new - old, atol=1e-14)
    np.testing.assert_allclose(low, (new - old).min(axis=0), atol=1e-14)
    np.testing.assert_allclose(high, (new - old).max(axis=0), atol=1e-14)

    weights, visits = rng.random(columns), rng.random(S)
    q = (cost @ weights).reshape(S, A)
    choice, total = np.empty(S, dtype=np.int32), np.empty(columns)
    greedy = {2: kernels.greedy_two, 4: kernels.greedy_four, 6: kernels.greedy_many}[columns]
    greedy(heads, cost, weights, visits, choice, total, 0, S)
    np.testing.assert_array_equal(choice, q.argmin(axis=1))
    np.testing.assert_allclose(total, visits @ cost[np.arange(S) * A + q.argmin(axis=1)], atol=1e-13)

    best, start = np.empty(S), np.zeros(S, dtype=np.int32)
    lowest, highest, moved = kernels.bellman(
        heads, A, *matrix, cost[:, 0].copy(), gamma, values[:, 0].copy(), values[:, 0].copy(), 0.0, best, start, 0, S
    )
    table = new[:, 0].reshape(S, A)
    np.testing.assert_allclose(best, table.min(axis=1), atol=1e-14)
    np.testing.assert_array_equal(start, table.argmin(axis=1))
    assert moved == (table.argmin(axis=1) != 0).sum()
    assert lowest == pytest.approx((table.min(axis=1) - values[:, 0]).min(), abs=1e-14)
    assert highest == pytest.approx((table.min(axis=1) - values[:, 0]).max(), abs=1e-14)


# -- small programs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*range(40), 546, 5118, 5470, 6590, 6942, 10250])  # the last take back several at once
def test_least_squares_against_scipy(seed):
    rng = np.random.default_rng(seed)
    m, n = int(rng.integers(1, 12)), int(rng.integers(1, 12))
    matrix, target = rng.normal(size=(m, n)), rng.normal(size=m)
    ours, theirs = nonnegative_least_squares(matrix, target), nnls(matrix, target)[0]
    assert (ours >= 0.0).all()
    assert np.linalg.norm(matrix @ ours - target) == pytest.approx(np.linalg.norm(matrix @ theirs - target), abs=1e-10)


def test_least_squares_of_any_size():
    """Squares of the entries may overflow or vanish, and an active set may become empty."""
    matrix, target = np.array([[1.0, 2.0], [0.5, -1.0], [0.0, 1.0]]), np.array([1.0, 2.0, 0.5])
    expected = np.linalg.lstsq(matrix, target, rcond=None)[0]
    for size in (1e-200, 1e-90, 1.0, 1e90, 1e200):
        np.testing.assert_allclose(least_squares._least_squares(size * matrix, target) * size, expected)
        one = least_squares._least_squares(size * matrix[:, :1], target) * size
        np.testing.assert_allclose(one, matrix[:, 0] @ target / (matrix[:, 0] @ matrix[:, 0]))
    assert least_squares._least_squares(np.zeros((3, 0)), target).size == 0


def test_a_mixture_by_hand():
    """Columns of cost 0 and 1 that use 2 and −2 of a limit: half of each; relaxed by 1 only a quarter is needed."""
    costs, rows = np.array([0.0, 1.0]), np.array([[2.0, -2.0]])
    tight = best_mixture(costs, rows, np.zeros(1))
    np.testing.assert_allclose(tight.weights, [0.5, 0.5])
    # a unit more of the limit moves a quarter of the weight, and saves a quarter
    np.testing.assert_allclose(tight.prices, [0.25])
    assert (tight.value, tight.excess) == (pytest.approx(0.5), 0.0)
    relaxed = best_mixture(costs, rows, np.ones(1))
    np.testing.assert_allclose(relaxed.weights, [0.75, 0.25])
    assert (relaxed.value, relaxed.excess) == (pytest.approx(0.25), 0.0)
    # nothing meets a limit of −3: the best is −2, which misses it by 1 at the price of the cap
    missed = best_mixture(costs, rows, np.array([-3.0]), cap=100.0)
    np.testing.assert_allclose(missed.weights, [0.0, 1.0])
    assert (missed.value, missed.excess) == (pytest.approx(101.0), pytest.approx(1.0))


def test_the_level_point_by_hand():
    """Cuts y ≥ level and 2 − y ≥ level over [0, cap]: the nearest point to the centre in an interval."""
    costs, rows = np.array([0.0, 2.0]), np.array([[1.0, -1.0]])
    assert level_point(np.array([0.2]), costs, rows, 0.5, 10.0) == pytest.approx([0.5])
    assert level_point(np.array([1.9]), costs, rows, 0.5, 10.0) == pytest.approx([1.5])
    assert level_point(np.array([0.7]), costs, rows, 0.5, 10.0) == pytest.approx([0.7])
    assert level_point(np.array([1.0]), costs, rows, 1.5, 10.0) is None
    # the cap binds: 0.4 is as far as the point may go, and too little for the first cut
    assert level_point(np.array([0.2]), costs, rows, 0.5, 0.4) is None
    # and it binds where a cut would allow more
    assert level_point(np.array([3.0]), np.array([0.0]), np.array([[1.0]]), 0.5, 2.0) == pytest.approx([2.0])
    # y_1 + 2 y_2 >= 3 with both at most 1: the nearest point (1.32, 0.84) is outside, and cutting it off is not enough
    two = level_point(np.array([0.9, 0.0]), np.array([-3.0]), np.array([[1.0], [2.0]]), 0.0, 1.0)
    assert two == pytest.approx([1.0, 1.0])


# -- the local dual ----------------------------------------------------------------------------------------------------


def test_the_local_dual_predicts_the_greedy_policy():
    """In one state the prediction is exact: V_i of the greedy policy at the given prices, in units of the scales."""
    reward, use = np.array([1.0, 3.0, 4.0]), np.array([0.0, 2.0, 6.0])
    cmdp = ck.CMDP(np.ones((1, 3, 1)), reward=[reward], constraints=[ck.AtMost([use], 5.0)], gamma=0.5)
    scales = np.array([6.0, 12.0])
    system = PolicySystem(cmdp, choice=np.zeros(1, dtype=int))
    values = np.array([-2.0, 0.0 - 5.0])  # of action 0: −1/(1 − γ), 0 − 5
    view = Viewpoint(
        Blend([np.zeros(1, dtype=int)], np.ones(1)), np.array([[-2.0, 0.0]]), system.state_occupancy(), values
    )
    local = LocalDual(cmdp, view, scales)
    # price 0 takes the reward of 4: V = −8, 12 − 5
    np.testing.assert_allclose(local.look(np.zeros(1)) * scales, [-8.0, 7.0])
    # a scaled price p is λ = p · 6/12: at p = 1 the actions cost −1, −3 + 1, −4 + 3, at p = 4 −1, −3 + 4, −4 + 12
    np.testing.assert_allclose(local.look(np.ones(1)) * scales, [-6.0, 4.0 - 5.0])
    np.testing.assert_allclose(local.look(np.array([4.0])) * scales, [-2.0, -5.0])


def test_a_blend_adds_up_where_its_parts_agree():
    blend = Blend([np.array([0, 1]), np.array([0, 2]), np.array([1, 1])], np.array([0.5, 0.3, 0.2]))
    np.testing.assert_allclose(blend.probabilities(Pairs(2, 3)), [[0.8, 0.2, 0.0], [0.0, 0.7, 0.3]])


# -- columns -----------------------------------------------------------------------------------------------------------


def test_the_best_bound_is_kept_whatever_is_asked_later():
    """G(λ) of the two-state model is −10.2 at 0.1 and less elsewhere."""
    search = ColumnSearch(two_state(0.9, 2.0))
    for lam in (0.0, 0.1, 1.0, 0.05):
        search.ask_bound(np.array([lam]))
    assert search.bound == pytest.approx(-10.2, rel=1e-9)
    np.testing.assert_array_equal(search.multipliers, [0.1])
    assert search.oracle_calls == 4


def test_policies_are_mixed_by_their_occupancies():
    """Never and always the risk: their mixture has the average values, and visits the repair in between."""
    cmdp = two_state(0.9, 2.0)
    search = ColumnSearch(cmdp)
    for choice in ([0, 0], [1, 0]):
        values = ck.evaluate(cmdp, np.eye(2)[choice])
        search.add(np.array(choice), np.array([-values.objective, values.constraint_values[0] - 2.0]))
    assert search.price()
    # 2 of at most 1/0.19 discounted uses: weights 1 − 0.38 and 0.38
    np.testing.assert_allclose(search.mixture.weights, [0.62, 0.38], rtol=1e-9)
    mixed = ck.evaluate(cmdp, best_policy(search))
    assert mixed.objective == pytest.approx(0.62 * 10.0 + 0.38 * 2.0 / 0.19)
    assert mixed.constraint_values[0] == pytest.approx(2.0)


# -- linear programs ---------------------------------------------------------------------------------------------------


def scaled_risk(reward_unit, use_unit, limit=2.0):
    """One state, action 1 earns a reward of 1 for a use of 1; at most `limit` of it, γ = 0.5, in other units."""
    use = ck.AtMost([[0.0, use_unit]], limit * use_unit)
    return ck.CMDP(np.ones((1, 2, 1)), reward=[[0.0, reward_unit]], constraints=[use], gamma=0.5)


@pytest.mark.parametrize(("reward_unit", "use_unit"), [(1.0, 1.0), (1e3, 1.0), (1.0, 1e3), (1e-3, 7.0)])
def test_the_lps_prices_have_the_users_units(reward_unit, use_unit):
    """A unit of use is worth a unit of reward where the limit binds."""
    solution = linprog.solve_lp(scaled_risk(reward_unit, use_unit, limit=1.0))
    np.testing.assert_allclose(solution.multipliers, [reward_unit / use_unit], rtol=1e-8)
    np.testing.assert_allclose(solution.policy.probabilities, [[0.5, 0.5]], atol=1e-8)
    # all of it can be left out: the margin is the limit itself
    assert ck.slater_margin(scaled_risk(reward_unit, use_unit, limit=1.0)) == pytest.approx(use_unit)


def test_farkas_weights_of_the_lp_in_the_users_units():
    """Use of a needs action 0, use of b action 1: a ≤ 0.5 and 100 b ≤ 50 of a total of 2 cannot both hold."""
    limits = [ck.AtMost([[1.0, 0.0]], 0.5, name="a"), ck.AtMost([[0.0, 100.0]], 50.0, name="b")]
    cmdp = ck.CMDP(np.ones((1, 2, 1)), reward=[[0.0, 0.0]], constraints=limits, gamma=0.5)
    worst, _, y = linprog.least_violation(cmdp)
    # x + z = 2 with excess t of each in its own unit: x − 0.5 = t, z − 0.5 = t, so that t = 0.5
    assert worst == pytest.approx(0.5)
    # y is proportional to (1, 1/100): then y·V = (x − 0.5) + (z − 0.5) = 1, whatever the policy
    np.testing.assert_allclose(y, np.array([100.0, 1.0]) / 101.0, rtol=1e-8)
    assert minimise(cmdp, np.append(0.0, y)).bound == pytest.approx(100.0 / 101.0)
    found = least_miss(cmdp)
    # in plain numbers x − 0.5 = 100 z − 50 with x + z = 2
    z = 51.5 / 101.0
    assert found.lower <= 2.0 - z - 0.5 + 1e-12
    assert found.upper == pytest.approx(2.0 - z - 0.5, rel=1e-7)
    np.testing.assert_allclose(found.policy.probabilities, [[1.0 - z / 2.0, z / 2.0]], rtol=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_the_oracle_stops_early_with_a_bound_that_holds(seed):
    """Whenever it gives up, its bound is below the minimum, which a rougher policy does not attain."""
    cmdp = random_model(seed, constraints=1, states=12, gamma=0.9)
    weights = np.array([1.0, 0.5])
    full = minimise(cmdp, weights)
    at_once = minimise(cmdp, weights, start=np.zeros(cmdp.states, dtype=np.int32), stop=lambda: True)
    assert at_once.bound <= weights @ full.values + 1e-12
    assert weights @ at_once.values >= weights @ full.values - 1e-10


def test_a_search_whose_bounds_cross_by_rounding_ends():
    """The best mixture was 1e-17 below the bound, which counted as the goal of a search that has none: it went on."""
    from fuzz.models import FAMILIES

    for index in (5, 6, 9, 10):
        cmdp = FAMILIES["narrow"](np.random.default_rng([1001, index]))
        assert ck.solve(cmdp, time_limit=20.0).status is not ck.Status.TIME_LIMIT


def test_a_search_that_nothing_can_relax_ends():
    """Limits on costs of zero have no scale: half of `tol` of it is nothing, and was allowed again and again."""
    from fuzz.models import model

    cmdp = model(2001, 4303)
    assert not np.asarray(cmdp.constraints[0].values).any()
    assert ck.solve(cmdp, time_limit=20.0).status is not ck.Status.TIME_LIMIT
