"""Small models by pivots, one limit by improving price and policy in turn, and orders of elimination that are kept."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linprog

import cmdpkit as ck
from cmdpkit.evaluation.chain import chosen_chain, mixed_chain
from cmdpkit.evaluation.factors import Order, _has_hub, sparse_lu
from cmdpkit.exact.columns import ColumnSearch
from cmdpkit.exact.least_squares import level_point
from cmdpkit.exact.master import best_mixture
from cmdpkit.exact.pivots import Walk, is_pivotable, optimal_vertex
from cmdpkit.exact.search import steps
from models import lp_optimum, random_model


def never():
    return False


def randomised(policy):
    return int((policy.probabilities > 0.0).sum() - policy.states)


@pytest.mark.parametrize("constraints", [1, 2, 5])
def test_the_vertex_is_that_of_the_lp(constraints):
    found = 0
    for seed in range(25):
        cmdp = random_model(seed, constraints=constraints)
        vertex = optimal_vertex(cmdp, never) if is_pivotable(cmdp) else None
        if vertex is None:
            continue
        found += 1
        optimum, _ = lp_optimum(cmdp)
        evaluation = ck.evaluate(cmdp, vertex.policy)
        assert evaluation.objective == pytest.approx(optimum, rel=1e-8, abs=1e-8)
        assert randomised(vertex.policy) <= constraints
        bound = ck.certify(cmdp, vertex.policy, cmdp.stated_prices(vertex.multipliers))
        assert bound.gap <= 1e-9
    assert found >= 20


@pytest.mark.parametrize("seed", range(6))
def test_a_walk_finds_the_vertex_of_every_limit(seed):
    """There and back, over limits of which the tightest cannot be met."""
    cmdp = ck.problems.garnet(20, constraints=2, seed=seed)
    walk, found = Walk(cmdp), 0
    for shift in np.append(np.linspace(0.5, -6.0, 14), np.linspace(-6.0, 0.5, 14)):
        model = cmdp.with_limits({cmdp.names[0]: float(cmdp.limits[0] + cmdp.signs[0] * shift)})
        vertex = walk.at(model.offsets, never)
        if vertex is None:
            assert ck.solve(model).status is ck.Status.INFEASIBLE
            continue
        found += 1
        optimum, _ = lp_optimum(model)
        assert ck.evaluate(model, vertex.policy).objective == pytest.approx(optimum, rel=1e-9, abs=1e-9)
        assert randomised(vertex.policy) <= 2
        assert ck.certify(model, vertex.policy, model.stated_prices(vertex.multipliers)).gap <= 1e-9
    assert 10 <= found < 28


def test_a_walk_goes_on_after_many_pivots(monkeypatch):
    """The inverse is computed anew on the way; a vertex does not depend on how it was reached."""
    monkeypatch.setattr("cmdpkit.exact.pivots.UPDATES", 3)
    cmdp = ck.problems.garnet(30, constraints=2, seed=1)
    walk, fresh = Walk(cmdp), 0
    for k in range(20):
        model = cmdp.with_limits({cmdp.names[0]: float(cmdp.limits[0]) * (1.0 - 0.02 * (k % 7))})
        vertex, own = walk.at(model.offsets, never), optimal_vertex(model, never)
        np.testing.assert_allclose(vertex.multipliers, own.multipliers, rtol=1e-7, atol=1e-9)
        fresh += walk._program.updates <= 3
    assert fresh > 0


def test_a_frontier_of_a_small_model_takes_one_vertex_per_limit_at_most():
    cmdp = ck.problems.wireless()
    curve = ck.frontier(cmdp, cmdp.names[0], tol=1e-2)
    given = np.linspace(curve.limits[0], curve.limits[-1], 22)[1:-1]
    found = ck.frontier(cmdp, cmdp.names[0], given)
    assert found.complete
    assert found.solves <= 20
    assert len(found.band.sums) <= 40
    for limit, objective in zip(found.limits, found.objectives, strict=True):
        optimum, _ = lp_optimum(cmdp.with_limits({cmdp.names[0]: float(limit)}))
        assert objective == pytest.approx(optimum, rel=1e-8)


def test_limits_on_one_piece_share_its_ends():
    """One state, three actions (cost, usage): (3, 0), (1, 1), (0, 3): the frontier has two pieces."""
    usage = ck.AtMost([[0.0, 1.0, 3.0]], 1.0, name="usage")
    cmdp = ck.CMDP(np.ones((1, 3, 1)), cost=[[3.0, 1.0, 0.0]], constraints=[usage], gamma=0.0)
    found = ck.frontier(cmdp, "usage", [0.25, 0.5, 0.75, 1.5, 2.0, 2.5])
    np.testing.assert_allclose(found.objectives, [2.5, 2.0, 1.5, 0.75, 0.5, 0.25], rtol=1e-9)
    assert found.solves == 2
    np.testing.assert_allclose(sorted(map(tuple, found.band.sums)), [(0, 3), (1, 1), (3, 0)], atol=1e-9)


def test_one_state_by_hand():
    """One state, two actions: reward 1 at cost 1, or nothing. A mean cost of 1/4 is a probability of 1/4."""
    P = np.ones((1, 2, 1))
    limit = ck.AtMost([[1.0, 0.0]], 0.25, per_step=True)
    cmdp = ck.CMDP(P, reward=[[1.0, 0.0]], constraints=[limit], gamma=0.5)
    vertex = optimal_vertex(cmdp, never)
    np.testing.assert_allclose(vertex.policy.probabilities, [[0.25, 0.75]], atol=1e-15)
    result = ck.solve(cmdp)
    assert result.iterations == 1
    assert result.objective == pytest.approx(0.5, abs=1e-15)  # 1/4 · 1/(1 − 1/2)
    assert result.multipliers[0] == pytest.approx(2.0, abs=1e-14)  # per unit of the mean


def test_limits_that_cannot_be_met_have_no_vertex():
    cmdp = ck.problems.paper()
    impossible = cmdp.with_limits({cmdp.names[0]: 100.0})
    assert optimal_vertex(impossible, never) is None
    assert ck.solve(impossible).status is ck.Status.INFEASIBLE


def test_it_stops_when_told():
    cmdp = ck.problems.grid(rows=5, columns=5)
    assert optimal_vertex(cmdp, lambda: True) is None


def test_what_is_not_proved_is_left_to_the_columns(monkeypatch):
    cmdp = ck.problems.paper()
    vertex = optimal_vertex(cmdp, never)
    wrong = vertex._replace(policy=ck.TabularPolicy.uniform(cmdp.states, cmdp.actions))
    monkeypatch.setattr("cmdpkit.run.pivoted.optimal_vertex", lambda *_: wrong)
    result = ck.solve(cmdp)
    assert result.status is ck.Status.OPTIMAL
    assert result.iterations > 1


def test_equal_limits():
    for seed in range(0, 24, 3):
        cmdp = random_model(seed, constraints=2, sparse=True)
        value, stated = ck.solve(cmdp).constraint_values[0], cmdp.constraints[0]
        both = [ck.Equal(stated.values, float(value), name="both", per_step=stated.per_step), *cmdp.constraints[1:]]
        goal = {"reward" if cmdp.maximise else "cost": np.asarray(cmdp.objective)}
        model = ck.CMDP(cmdp.transitions, constraints=both, gamma=cmdp.gamma, initial=cmdp.initial, **goal)
        result = ck.solve(model)
        assert result.status is ck.Status.OPTIMAL
        assert result.objective == pytest.approx(lp_optimum(model)[0], rel=1e-7, abs=1e-7)


# -- one limit ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounded", [False, True])
def test_one_row_is_solved_as_by_the_lp(rounded):
    rng = np.random.default_rng(11)
    for _ in range(200):
        n = int(rng.integers(1, 12))
        costs, row = rng.normal(size=n), rng.normal(size=n) + rng.choice([-1.0, 0.0, 1.0, 3.0])
        if rounded:  # ties
            costs, row = costs.round(1), row.round(1)
        cap, relaxation = rng.choice([0.5, 3.0, 1e6]), rng.choice([0.0, 0.01])
        mixture = best_mixture(costs, row[None], np.array([relaxation]), cap)
        table = np.vstack([np.concatenate([[1.0, -1.0], row]), np.append([0.0, 0.0], np.ones(n))])
        answer = linprog(np.concatenate([[0.0, cap], costs]), A_eq=table, b_eq=[relaxation, 1.0])
        assert mixture.value == pytest.approx(answer.fun, rel=1e-9, abs=1e-9)
        assert mixture.weights.min() >= 0.0
        assert mixture.weights.sum() == pytest.approx(1.0, abs=1e-14)
        price = mixture.prices[0]
        assert 0.0 <= price <= cap
        assert (costs + price * (row - relaxation)).min() == pytest.approx(answer.fun, rel=1e-9, abs=1e-9)


def test_the_nearest_point_on_a_level():
    costs, row = np.array([0.0, 3.0]), np.array([[2.0, -1.0]])  # 2y and 3 − y: at least 1 on [1/2, 2]
    for center, nearest in ((0.0, 0.5), (1.0, 1.0), (5.0, 2.0)):
        assert level_point(np.array([center]), costs, row, 1.0, 10.0)[0] == pytest.approx(nearest)
    assert level_point(np.array([5.0]), costs, row, 1.0, 1.5)[0] == pytest.approx(1.5)
    assert level_point(np.array([0.0]), costs, row, 2.5, 10.0) is None
    flat = level_point(np.array([0.0]), np.array([0.0, 1.0]), np.array([[0.0, 1.0]]), 0.5, 10.0)
    assert flat is None


@pytest.mark.parametrize("slip", [0.0, 0.15])
def test_a_grid_with_one_limit_takes_few_policies(slip):
    cmdp = ck.problems.grid(rows=18, columns=18, gamma=0.99, slip=slip)
    search, taken = ColumnSearch(cmdp, 1e-6), 0
    for _ in steps(search):
        taken += 1
        if search.stuck:
            break
    assert taken <= 40
    assert search.upper - search.bound <= 1e-9
    assert cmdp.sense * search.upper == pytest.approx(lp_optimum(cmdp)[0], rel=1e-7, abs=1e-7)


def test_one_limit_that_no_policy_meets():
    cmdp = ck.problems.grid(rows=18, columns=18, gamma=0.99)
    impossible = cmdp.with_limits({cmdp.names[0]: -1.0 * cmdp.signs[0]})
    assert ck.solve(impossible).status is ck.Status.INFEASIBLE


# -- orders of elimination ---------------------------------------------------------------------------------------------


def test_a_kept_order_solves_the_same_systems():
    cmdp = ck.problems.two_queues(capacity=14)
    rng, order, b = np.random.default_rng(3), Order(), np.arange(2.0 * cmdp.states).reshape(-1, 2)
    chains = [mixed_chain(cmdp, cmdp.pairs.uniform())]
    chains += [sp.csr_array(chosen_chain(cmdp, rng.integers(0, cmdp.actions, cmdp.states))) for _ in range(3)]
    for k, chain in enumerate(chains):
        solve, transposed = sparse_lu(chain, 0.97, order)
        assert order.is_used == (k > 0)
        dense = np.eye(cmdp.states) - 0.97 * chain.toarray()
        np.testing.assert_allclose(dense @ solve(b), b, atol=1e-9)
        np.testing.assert_allclose(dense.T @ transposed(b[:, 0]), b[:, 0], atol=1e-9)


def test_a_chain_with_a_hub_is_ordered_quickly_and_solved():
    """Every level of wear leads back to the state after a repair: minimum degree would take time like its square."""
    cmdp = ck.problems.maintenance(levels=600)
    chain, order = mixed_chain(cmdp, cmdp.pairs.uniform()), Order()
    assert _has_hub(chain)
    b, dense = np.arange(2.0 * cmdp.states).reshape(-1, 2), np.eye(cmdp.states) - 0.97 * chain.toarray()
    for _ in range(2):  # with an order to find, and with the one that was found
        solve, transposed = sparse_lu(chain, 0.97, order)
        np.testing.assert_allclose(dense @ solve(b), b, atol=1e-9 * np.abs(b).max())
        np.testing.assert_allclose(dense.T @ transposed(b[:, 0]), b[:, 0], atol=1e-9 * np.abs(b).max())
    assert order.is_used
    lattice = ck.problems.two_queues(capacity=19)
    assert not _has_hub(mixed_chain(lattice, lattice.pairs.uniform()))


def test_a_chain_that_fills_up_gets_its_own_order():
    """A path is eliminated without fill; a ring of random chords is not, and least of all in the order of the path."""
    n, rng, order = 300, np.random.default_rng(0), Order()
    path = sp.csr_array((np.ones(n), np.append(np.arange(1, n), n - 1), np.arange(n + 1)), shape=(n, n))
    chords = sp.csr_array((np.full(2 * n, 0.5), rng.integers(0, n, 2 * n), np.arange(0, 2 * n + 1, 2)), shape=(n, n))
    sparse_lu(path, 0.9, order)
    first = order.states
    solve, _ = sparse_lu(chords, 0.9, order)
    assert not order.is_used
    assert order.states is not first
    b = rng.random(n)
    x = solve(b)
    np.testing.assert_allclose(x - 0.9 * (chords @ x), b, atol=1e-12)


def test_shared_successors_are_added_up():
    """Of 16 orders most lead to the same stock: the chain has their sums, as exact fractions of a few rows say."""
    cmdp = ck.problems.inventory(capacity=300)
    chain, uniform = mixed_chain(cmdp, cmdp.pairs.uniform()), cmdp.pairs.uniform()
    assert cmdp.transitions.nnz >= 50_000
    assert chain.nnz < cmdp.transitions.nnz / 4
    for state in (0, 7, 300):
        own = slice(*cmdp.pairs.first[state : state + 2])
        rows = cmdp.transitions[own].toarray()
        target = int(rows.sum(axis=0).argmax())
        exact = sum(Fraction(p) * Fraction(w) for p, w in zip(rows[:, target], uniform[state], strict=True))
        assert chain[[state]].toarray()[0, target] == pytest.approx(float(exact), rel=1e-14)


@pytest.mark.parametrize("sparse", [False, True])
def test_chain_of_a_walk(sparse):
    """The dense chain that small models are evaluated with is that of the policy, mixed or not."""
    rng = np.random.default_rng(0)
    chances = rng.dirichlet(np.ones(6), size=(6, 3))
    transitions = sp.csr_array(chances.reshape(18, 6)) if sparse else chances
    limit = ck.AtMost(rng.random((6, 3)), 3.0)
    cmdp = ck.CMDP(transitions, cost=rng.random((6, 3)), constraints=[limit], gamma=0.9)
    pairs = cmdp.pairs
    mixed = pairs.one_hot(np.zeros(6, dtype=int))
    mixed[1] = 0.25, 0.0, 0.75
    for pi in (mixed, pairs.one_hot(np.ones(6, dtype=int)), pairs.uniform()):
        expected = np.einsum("sa,sat->st", pi, chances)
        np.testing.assert_allclose(Walk(cmdp).chain(pi), expected, rtol=0.0, atol=1e-15)
