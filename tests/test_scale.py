"""Large models: every evaluation against dense algebra, the small LPs against HiGHS, the whole at its edges."""

import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linprog

import cmdpkit as ck
from cmdpkit.evaluation import Plan, PolicySystem, backup, threads
from cmdpkit.evaluation.chain import chosen_chain, mixed_chain, separator_width
from cmdpkit.evaluation.factors import Krylov
from cmdpkit.exact.columns import ColumnSearch
from cmdpkit.exact.least_squares import level_point
from cmdpkit.exact.local import Blend, LocalDual, Viewpoint, near_outlook, outlook
from cmdpkit.exact.master import Program, best_mixture, least_violation
from cmdpkit.exact.mdp import Oracle, minimise
from cmdpkit.exact.search import steps
from models import coupled, lp_optimum, random_model, renumbered

MODELS = {
    "sweeps": lambda: ck.problems.garnet(states=400, actions=4, constraints=3, gamma=0.99),
    "band": lambda: ck.problems.two_queues(capacity=16, gamma=0.999),
    "sparse": lambda: renumbered(ck.problems.two_queues(capacity=16, gamma=0.999)),
    "krylov": lambda: coupled(600, 1e-4),
}


def some_policy(cmdp, seed=0, zeros=True):
    pi = np.random.default_rng(seed).dirichlet(np.full(cmdp.actions, 0.3), size=cmdp.states)
    pi = np.where(pi < 0.1, 0.0, pi) if zeros else pi
    return pi / pi.sum(axis=1, keepdims=True)


def dense_chain(cmdp, pi):
    return np.einsum("sa,sat->st", pi, cmdp.transitions.toarray().reshape(cmdp.states, cmdp.actions, cmdp.states))


@pytest.fixture(params=[False, True], ids=["plain", "compiled"])
def compiled(request, monkeypatch):
    """Both ways to sweep, on models of any size."""
    monkeypatch.setattr(backup, "COMPILED", 0 if request.param else 10**9)
    return request.param


# -- evaluation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", MODELS)
def test_each_kind_of_chain_is_evaluated_by_the_method_that_suits_it(method, compiled):
    cmdp = MODELS[method]()
    pi = some_policy(cmdp)
    truth = np.eye(cmdp.states) - cmdp.gamma * dense_chain(cmdp, pi)
    cost = np.einsum("isa,sa->si", cmdp.costs.reshape(-1, cmdp.states, cmdp.actions), pi)
    plan = Plan()
    system = PolicySystem(cmdp, pi, plan=plan)
    values, visits = system.state_values(cost), system.state_occupancy()
    assert plan.method == method
    size = np.abs(cost).max(axis=0) / (1.0 - cmdp.gamma)
    assert (np.abs(values - np.linalg.solve(truth, cost)) <= 1e-10 * size).all()
    np.testing.assert_allclose(visits, np.linalg.solve(truth.T, cmdp.initial), atol=1e-9 / (1.0 - cmdp.gamma))
    np.testing.assert_allclose(system.solve(cost[:, 0]), values[:, 0], atol=1e-10 * size[0])


@pytest.mark.parametrize("method", ["sweeps", "krylov"])
@pytest.mark.parametrize("accuracy", [1.0, 1e-3, 1e-6])
def test_inexact_values_are_as_exact_as_asked(method, accuracy, compiled):
    cmdp = MODELS[method]()
    choice = np.zeros(cmdp.states, dtype=int)
    cost = cmdp.costs[:, np.arange(cmdp.states) * cmdp.actions].T
    truth = np.linalg.solve(np.eye(cmdp.states) - cmdp.gamma * chosen_chain(cmdp, choice).toarray(), cost)
    system = PolicySystem(cmdp, choice=choice, plan=Plan(method))
    guess = truth + np.random.default_rng(0).normal(size=truth.shape)
    for start in (None, guess):
        values = system.state_values(cost, start, np.full(cost.shape[1], accuracy))
        assert np.abs(values - truth).max() <= accuracy


@pytest.mark.parametrize("columns", [1, 2, 4, 5, 9])
def test_compiled_and_plain_look_ahead_agree(columns):
    cmdp = random_model(3, constraints=columns - 1, sparse=True, states=15, gamma=0.9)
    rng = np.random.default_rng(0)
    values, visits, weights = rng.normal(size=(15, columns)), rng.random(15), rng.random(columns)
    found = []
    for limit in (0, 10**9):
        with mock.patch.object(backup, "COMPILED", limit):
            table = backup.advantages(cmdp, values)
            one = backup.bellman(cmdp, cmdp.costs[0], values[:, 0], np.zeros(15, dtype=int), 0.05)
            choice, total = backup.greedy(cmdp.pairs, table, weights, visits, limit == 0)
            found.append([table, *one, choice, total])
    for compiled, plain in zip(*found, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-13, atol=1e-13)
    # and both are what the formulas say
    q = cmdp.costs.T + 0.9 * cmdp.transitions.toarray() @ values
    np.testing.assert_allclose(found[1][0], q - np.repeat(values, cmdp.actions, axis=0), atol=1e-12)
    np.testing.assert_allclose(found[1][1], q[:, 0].reshape(15, -1).min(axis=1), atol=1e-12)


def test_blocks_in_threads_change_no_bit(monkeypatch):
    cmdp = ck.problems.garnet(states=2_500, actions=10, constraints=1)
    value = np.random.default_rng(0).normal(size=cmdp.states)
    answers = []
    for size, helpers in ((10**9, 0), (10_000, 0), (10_000, 3)):
        monkeypatch.setattr(threads, "BLOCK", size)
        monkeypatch.setattr(threads, "helpers", lambda helpers=helpers: helpers)
        answers.append(backup.bellman(cmdp, cmdp.costs[0], value, np.zeros(cmdp.states, dtype=int)))
    for other in answers[1:]:
        for one, two in zip(answers[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_blocks_cover_everything_in_order(monkeypatch):
    monkeypatch.setattr(threads, "BLOCK", 10)
    assert threads.in_blocks(lambda first, last: (first, last), 7, 45) == [(0, 1), (1, 3), (3, 5), (5, 7)]
    with pytest.raises(ZeroDivisionError):
        threads.in_blocks(lambda first, last: 1 // 0, 100, 1_000)


@pytest.mark.parametrize("seed", range(5))
def test_chains_of_policies(seed):
    cmdp = random_model(seed, sparse=True, states=12)
    pi = some_policy(cmdp, seed)
    np.testing.assert_allclose(mixed_chain(cmdp, pi).toarray(), dense_chain(cmdp, pi), atol=1e-15)


def test_separators():
    def lattice(*sides):
        lines = [sp.diags_array([np.ones(n - 1), np.ones(n - 1)], offsets=[-1, 1]) for n in sides]
        return sp.csr_array(lines[0] if len(lines) == 1 else sp.kronsum(*lines))

    assert separator_width(lattice(500)) == 1
    assert 10 <= separator_width(lattice(20, 20)) <= 20
    assert separator_width(sp.csr_array(sp.block_diag([lattice(500), lattice(20, 20), lattice(9)]))) == 1  # the largest
    assert separator_width(chosen_chain(ck.problems.garnet(states=500, actions=2), np.zeros(500, dtype=int))) > 100


def test_hubs_are_taken_out_of_a_separator():
    """A star, and a line that falls back to its start from everywhere: sparse factors, not GMRES."""
    for n in (500, 2_000):
        back = sp.csr_array((np.full(n, 0.1), (np.arange(n), np.zeros(n, dtype=int))), shape=(n, n))
        star = sp.csr_array(0.9 * sp.eye_array(n) + back)
        up = sp.csr_array((np.full(n, 0.9), (np.arange(n), np.minimum(np.arange(n) + 1, n - 1))), shape=(n, n))
        line = sp.csr_array(up + back)
        for chain in (star, line):
            assert separator_width(chain) == 1 + int(np.ceil(n**0.5))
    costs = np.random.default_rng(0).random((2, n, 1))
    cmdp = ck.CMDP(line, cost=costs[0], constraints=[ck.AtMost(costs[1], 1e6)], gamma=0.999, initial=0)
    system = PolicySystem(cmdp, np.ones((n, 1)))
    values = system.state_values(cmdp.costs.T)
    assert system.plan.method in ("sweeps", "sparse")
    np.testing.assert_allclose(values - 0.999 * (line @ values), cmdp.costs.T, atol=1e-9)


def test_krylov_with_a_preconditioner():
    """A three-dimensional lattice walked at random: plain GMRES is slow, and the incomplete LU takes over."""
    line = sp.diags_array([np.full(13, 1 / 6), np.full(13, 1 / 6)], offsets=[-1, 1])
    chain = sp.csr_array(sp.kronsum(sp.kronsum(line, line), line))
    chain = sp.csr_array(chain + sp.diags_array(1.0 - chain.sum(axis=1)))
    b = np.random.default_rng(0).normal(size=(chain.shape[0], 2))
    truth = np.linalg.solve(np.eye(chain.shape[0]) - 0.9999 * chain.toarray(), b)
    with (
        mock.patch("cmdpkit.evaluation.factors.FILLING_STATES", 0),
        mock.patch("cmdpkit.evaluation.factors.SLOW", 1e-5),
    ):
        krylov = Krylov(chain, 0.9999)
        np.testing.assert_allclose(krylov.solve(b), truth, atol=1e-8 * np.abs(truth).max())
        assert krylov._nearly is not None
        np.testing.assert_allclose(krylov.solve_transposed(b[:, 0]), truth[:, 0], atol=1e-8 * np.abs(truth).max())


def test_indices_are_short():
    cmdp = ck.problems.garnet()
    assert cmdp.transitions.indices.dtype == cmdp.transitions.indptr.dtype == np.int32


# -- the oracle ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", MODELS)
def test_a_warm_oracle_answers_like_a_cold_one(method):
    cmdp = MODELS[method]()
    dense = ck.CMDP(
        cmdp.transitions.toarray().reshape(cmdp.states, cmdp.actions, cmdp.states),
        cost=cmdp.sense * np.asarray(cmdp.objective),
        constraints=cmdp.constraints,
        gamma=cmdp.gamma,
        initial=cmdp.initial,
    )
    oracle = Oracle(cmdp)
    rng = np.random.default_rng(1)
    for _ in range(3):
        weights = np.append(1.0, rng.exponential(size=cmdp.num_constraints) * cmdp.spans[0] / cmdp.spans[1:])
        warm, truth = oracle.minimise(weights), minimise(dense, weights)
        scale = abs(weights) @ cmdp.cost_sizes / (1.0 - cmdp.gamma)
        assert abs(weights @ (warm.values - truth.values)) <= 1e-9 * scale
        assert warm.bound <= weights @ truth.values
        assert warm.bound >= weights @ truth.values - 1e-9 * scale
        # whoever gives up early still has a valid bound
        hasty = Oracle(cmdp).minimise(weights, gap=0.1 * scale, rounds=1)
        assert hasty.bound <= weights @ truth.values <= weights @ hasty.values + 1e-9 * scale
        hopeless = Oracle(cmdp).minimise(weights, hopeless=np.inf)
        assert hopeless.evaluations <= 2


# -- the small LPs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_the_master_equals_highs(seed):
    rng = np.random.default_rng(seed)
    m, n = int(rng.integers(1, 21)), int(rng.integers(1, 60))
    costs, rows = rng.normal(size=n), rng.normal(size=(m, n)) - 0.3
    if seed % 3 == 0:  # degenerate: columns twice, and values on a grid
        costs, rows = np.round(np.append(costs, costs), 1), np.round(np.hstack([rows, rows]), 0)
    relaxation, cap = rng.uniform(0.0, 0.1, size=m) * (seed % 2), 10.0
    mixture = best_mixture(costs, rows, relaxation, cap)
    n = len(costs)
    truth = linprog(
        np.append(costs, np.full(m, cap)),
        A_ub=np.hstack([rows, -np.eye(m)]),
        b_ub=relaxation,
        A_eq=np.append(np.ones(n), np.zeros(m))[None, :],
        b_eq=[1.0],
    )
    assert mixture.value == pytest.approx(truth.fun, abs=1e-8)
    assert mixture.weights.sum() == pytest.approx(1.0)
    assert (mixture.prices >= 0.0).all()
    assert (mixture.prices <= cap + 1e-9).all()
    # the prices prove it: no column is cheaper at them
    assert (costs + mixture.prices @ (rows - relaxation[:, None])).min() == pytest.approx(truth.fun, abs=1e-8)
    # one more column, from the last basis
    more = best_mixture(np.append(costs, -5.0), np.hstack([rows, np.zeros((m, 1))]), relaxation, cap, mixture.basis)
    assert more.value <= -5.0 + 1e-9
    worst, game = least_violation(rows)
    assert (game.prices @ rows).min() == pytest.approx(worst, abs=1e-8)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_a_program_that_grows_equals_one_that_is_built_whole(seed, exact):
    rng = np.random.default_rng(seed)
    m, n = int(rng.integers(1, 6)), 80
    columns = np.hstack([rng.normal(size=(n, 1)), rng.normal(size=(n, m)) - 0.3])
    if seed % 3 == 0:  # degenerate
        columns = np.round(columns, 1)
    relaxation = rng.uniform(0.0, 0.1, size=m)
    program = Program(columns[:3], relaxation, 10.0, exact=exact)
    for k in range(3, n):
        program.add(columns[k])
        if k % 7 == 0 or k == n - 1:
            value, prices = program.solve()
            costs, rows, mixture = columns[: k + 1, 0], columns[: k + 1, 1:], program.mixture()
            whole = best_mixture(costs, rows.T, relaxation, 10.0)
            assert value == pytest.approx(whole.value, abs=1e-9)
            assert (costs + (rows - relaxation) @ prices).min() == pytest.approx(value, abs=1e-9)
            assert costs @ mixture.weights + 10.0 * mixture.excess == pytest.approx(value, abs=1e-9)
    np.testing.assert_array_equal(program.columns, columns)


@pytest.mark.parametrize("seed", range(30))
def test_level_points_are_the_nearest(seed):
    rng = np.random.default_rng(seed)
    m, n = int(rng.integers(1, 8)), int(rng.integers(1, 15))
    costs, rows, center = rng.normal(size=n), rng.normal(size=(m, n)), rng.random(m)
    inside = rng.random(m)
    level = float((costs + inside @ rows).min()) - 0.01  # so that there is such a point
    point = level_point(center, costs, rows, level, cap=1.0)
    assert ((point >= 0.0) & (point <= 1.0)).all()
    assert (costs + point @ rows).min() >= level - 1e-8
    # a projection on a convex set: ⟨center − point, other − point⟩ ≤ 0 for every other point of it
    for _ in range(200):
        other = inside + rng.random() * (rng.random(m) - inside)
        if (costs + other @ rows).min() >= level:
            assert (center - point) @ (other - point) <= 1e-7
    assert level_point(center, costs, rows, 1e3, cap=1.0) is None


# -- the local dual --------------------------------------------------------------------------------------------------


def view_of(cmdp, blend):
    pi = blend.probabilities(cmdp.pairs)
    system = PolicySystem(cmdp, pi)
    state_values = system.state_values(np.einsum("isa,sa->si", cmdp.costs.reshape(-1, *pi.shape), pi))
    values = cmdp.initial @ state_values - np.append(0.0, cmdp.offsets)
    return Viewpoint(blend, state_values, system.state_occupancy(), values)


def test_the_local_dual_misses_by_second_order_only(compiled):
    cmdp = ck.problems.garnet(states=300, actions=4, constraints=2, gamma=0.9)
    base = minimise(cmdp, np.array([1.0, 0.2, 0.2])).choice
    view = view_of(cmdp, Blend([base], np.ones(1)))
    local = LocalDual(cmdp, view, np.ones(3))
    predicted = local.look(np.array([0.5, 0.1]))
    other = local.seen[0]
    assert (other != base).any()
    misses = []
    for share in (0.1, 0.01, 0.001):
        blend = Blend([base, other], np.array([1.0 - share, share]))
        linear = (1.0 - share) * view.values + share * predicted
        misses.append(np.abs(view_of(cmdp, blend).values - linear).max())
    assert misses[1] <= 0.02 * misses[0]
    assert misses[2] <= 0.02 * misses[1]


def test_the_outlook_is_the_maximum_of_the_local_dual():
    cmdp = ck.problems.garnet(states=100, actions=4, constraints=2, gamma=0.9)
    view = view_of(cmdp, Blend([minimise(cmdp, np.array([1.0, 0.2, 0.2])).choice], np.ones(1)))
    scales = np.full(3, 10.0)
    local = LocalDual(cmdp, view, scales)
    far = outlook(local, view.values[None, :] / scales, np.zeros(2), -1e-3, 1e-3, cap=2.0, margin=0.0)

    def value(prices):
        seen = LocalDual(cmdp, view, scales).look(prices)
        return min(seen[0] + prices @ seen[1:], (view.values[0] + prices @ view.values[1:]) / 10.0)

    grid = [value(np.array([a, b])) for a in np.linspace(0, 2, 21) for b in np.linspace(0, 2, 21)]
    assert far.value == pytest.approx(value(far.prices))
    assert far.value >= max(grid) - 2e-4
    # the blend is predicted to meet the limits, at that value
    assert far.predicted[1:].max() <= 1e-9
    assert far.predicted[0] == pytest.approx(far.value, abs=3e-4)
    assert far.blend.probabilities(cmdp.pairs).sum(axis=1) == pytest.approx(1.0)


@pytest.mark.parametrize("margin", [0.0, 0.01])
def test_near_the_end_one_column_generation_finds_prices_and_policy(margin):
    cmdp = ck.problems.garnet(states=100, actions=4, constraints=2, gamma=0.9)
    view = view_of(cmdp, Blend([minimise(cmdp, np.array([1.0, 0.2, 0.2])).choice], np.ones(1)))
    scales, start, accuracy = np.full(3, 10.0), np.array([0.3, 0.1]), 1e-9
    local = LocalDual(cmdp, view, scales)
    near = near_outlook(local, start, 1.0, 2.0, np.full(2, margin), accuracy, share=1e-9)

    def value(prices):
        seen = LocalDual(cmdp, view, scales).look(prices)
        return seen[0] + prices @ seen[1:]

    grid = [np.array([a, b]) for a in np.linspace(0, 2, 21) for b in np.linspace(0, 2, 21)]
    inside = [value(prices) + margin * prices.sum() for prices in grid]
    assert near.value == pytest.approx(value(near.prices), abs=1e-12)
    assert near.value + margin * near.prices.sum() >= max(inside) - 1e-9
    # duality: the blend keeps its distance from the limits, and costs what the prices promise
    assert near.predicted[1:].max() <= -margin + 1e-9
    assert near.predicted[0] == pytest.approx(near.value + margin * near.prices.sum(), abs=2e-9)
    assert near.blend.probabilities(cmdp.pairs).sum(axis=1) == pytest.approx(1.0)


# -- the whole -------------------------------------------------------------------------------------------------------


def check(cmdp, most_calls=None, **options):
    result = ck.solve(cmdp, **options)
    optimum, _ = lp_optimum(cmdp)
    assert result.status is ck.Status.OPTIMAL, (result.status, str(result.certificate))
    assert result.objective == pytest.approx(optimum, rel=2e-6, abs=1e-9)
    sign = 1.0 if cmdp.maximise else -1.0
    assert sign * result.certificate.bound >= sign * optimum - 1e-7 * abs(optimum)
    truth = ck.evaluate(cmdp, result.policy)
    np.testing.assert_allclose(truth.constraint_values, result.constraint_values, rtol=1e-8, atol=1e-8)
    if most_calls is not None:
        assert result.iterations <= most_calls
    return result


@pytest.mark.parametrize("method", MODELS)
def test_the_optimum_on_every_path(method, compiled):
    check(MODELS[method](), most_calls=15)


@pytest.mark.parametrize("constraints", [1, 3, 8, 20])
def test_oracle_calls_do_not_grow_with_the_constraints(constraints):
    cmdp = ck.problems.garnet(states=300, actions=4, constraints=constraints, gamma=0.95, seed=7)
    check(cmdp, most_calls=15)


@pytest.mark.parametrize("bridge", [1e-2, 1e-5, 1e-9, 0.0])
@pytest.mark.parametrize("states", [60, 300])
def test_nearly_reducible_chains(states, bridge):
    check(coupled(states, bridge))


@pytest.mark.parametrize("gamma", [0.999, 0.9999, 0.99999])
@pytest.mark.parametrize("kind", ["garnet", "queues", "coupled"])
def test_discounts_close_to_one(kind, gamma):
    if kind == "garnet":
        cmdp = ck.problems.garnet(states=250, actions=3, constraints=2, gamma=gamma)
    else:
        cmdp = coupled(250, 1e-4, gamma) if kind == "coupled" else ck.problems.two_queues(capacity=14, gamma=gamma)
    result = ck.solve(cmdp)
    assert result.status is ck.Status.OPTIMAL
    truth = ck.evaluate(cmdp, result.policy)
    assert truth.objective == pytest.approx(result.objective, rel=1e-8)


@pytest.mark.parametrize("states", [60, 300])
def test_costs_of_wildly_different_scales(states):
    plain = ck.problems.garnet(states=states, actions=3, constraints=3, gamma=0.98)
    units = np.array([1e6, 1e-6, 1e3, 1e8])
    limits = [ck.AtMost(u * np.asarray(c.values), u * c.limit) for u, c in zip(units[1:], plain.rows, strict=True)]
    mixed = ck.CMDP(plain.transitions, reward=units[0] * plain.objective, constraints=limits, gamma=0.98)
    one, other = check(plain), ck.solve(mixed)
    assert other.status is ck.Status.OPTIMAL
    assert other.objective / units[0] == pytest.approx(one.objective, rel=1e-6)
    assert (other.violations <= 1e-6 * np.maximum(1.0, np.abs(mixed.limits))).all()


@pytest.mark.parametrize("states", [60, 300])
def test_twenty_constraints_most_of_them_slack(states):
    tight = ck.problems.garnet(states=states, actions=3, constraints=2, gamma=0.98)
    rng = np.random.default_rng(0)
    slack = [ck.AtMost(rng.random((states, 3)), 0.95 / 0.02, name=f"slack {i}") for i in range(18)]
    cmdp = ck.CMDP(tight.transitions, reward=tight.objective, constraints=[*tight.constraints, *slack], gamma=0.98)
    result = check(cmdp)
    assert result.objective == pytest.approx(ck.solve(tight).objective, rel=2e-6)
    np.testing.assert_allclose(result.multipliers[2:], 0.0, atol=1e-4)


@pytest.mark.parametrize("states", [60, 300])
@pytest.mark.parametrize("distance", [1e-6, 1e-9, -1e-9, -1e-6])
def test_limits_within_a_hair_of_the_impossible(states, distance):
    plain = ck.problems.garnet(states=states, actions=3, constraints=1, gamma=0.98)
    cost = np.asarray(plain.constraints[0].values)
    least = minimise(ck.CMDP(plain.transitions, cost=cost, gamma=0.98), np.ones(1)).values[0]
    limits = [ck.AtMost(cost, least * (1.0 + distance))]
    result = ck.solve(ck.CMDP(plain.transitions, reward=plain.objective, constraints=limits, gamma=0.98))
    if distance > 0.0:
        assert result.status is ck.Status.OPTIMAL
        assert result.violations[0] <= 1e-6 * least
    else:
        assert result.status is ck.Status.INFEASIBLE
        assert 0.0 < result.certificate.infeasibility_margin <= -1.01 * distance * least


def test_a_search_that_is_stopped_has_valid_bounds():
    cmdp = ck.problems.garnet(states=400, actions=4, constraints=3, gamma=0.99)
    optimum = cmdp.sense * lp_optimum(cmdp)[0]
    search = ColumnSearch(cmdp, 1e-6)
    for _ in steps(search):
        assert search.bound <= optimum + 1e-7 * abs(optimum)
        assert search.upper >= optimum - 1e-6 * abs(optimum)
        if search.oracle_calls >= 6:
            break


def test_small_models_load_no_compiler_and_no_lp_solver():
    code = (
        "import sys, cmdpkit as ck; ck.solve(ck.problems.paper()); ck.solve(ck.problems.two_queues(capacity=15));"
        "assert 'numba' not in sys.modules and 'scipy.optimize' not in sys.modules, 'loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_oracle_sees_far():
    """What is worth having is 60 steps away and all policies near the start look alike: one policy finds the way."""
    cmdp = ck.problems.grid(rows=30, columns=60, gamma=0.999)
    answer = minimise(cmdp, np.array([1.0, 0.0]))
    assert answer.evaluations <= 12
    assert cmdp.sense * answer.values[0] == pytest.approx(
        lp_optimum(ck.CMDP(cmdp.transitions, reward=cmdp.objective, gamma=0.999, initial=cmdp.initial))[0], rel=1e-6
    )
    assert check(cmdp).iterations <= 20  # policies, each improved once
