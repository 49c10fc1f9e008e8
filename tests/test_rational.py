"""Small models in exact arithmetic, compared with fractions that are computed in another way."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import linprog

import cmdpkit as ck
from cmdpkit.certificates.checker import certificate_of, exact_certificate
from cmdpkit.evaluation.rational import RationalModel, Table, above, below, is_small, solved
from cmdpkit.evaluation.rational_averages import RationalAverages
from cmdpkit.exact.simplex import ExactMaster
from cmdpkit.exact.small import SmallSearch
from fuzz.averages import ExactAverages
from fuzz.exact import ExactModel
from models import random_model
from rational import Exact

FINE = Fraction(1, 2**500)


def values_of(model, pi):
    played = Table.of(np.ravel(pi))
    return model.values(played, model.visits(played))


def playing(limit, gamma=0.5):
    """One state; action 1 earns and uses one unit per step."""
    use = ck.AtMost([[0.0, 1.0]], limit, name="use")
    return ck.CMDP(np.ones((1, 2, 1)), reward=[[0.0, 1.0]], constraints=[use], gamma=gamma)


@pytest.mark.parametrize("seed", range(6))
def test_values_of_policies(seed):
    cmdp = random_model(seed, constraints=2, states=4)
    rng = np.random.default_rng(seed)
    exact, model = Exact(cmdp), RationalModel(cmdp)
    policy = ck.TabularPolicy(rng.dirichlet(np.ones(cmdp.actions), size=cmdp.states))
    values, errors = values_of(model, policy.pi)
    truth = exact.values(exact.normalised(policy))
    for value, error, true in zip(values, errors, truth, strict=True):
        assert abs(value - true) <= error <= FINE


def test_probabilities_count_as_divided_by_their_sums():
    model = RationalModel(playing(1.0))
    # 0.5 of 0.75: V_use = 2 · 2/3 − 1
    assert abs(values_of(model, [0.25, 0.5])[0][1] - Fraction(1, 3)) <= FINE


@pytest.mark.parametrize("seed", range(6))
def test_minima_over_all_policies(seed):
    cmdp = random_model(seed, constraints=2, states=3)
    weights = [1.0, *np.random.default_rng(seed).exponential(size=2)]
    model, truth = RationalModel(cmdp), Exact(cmdp).minimum(weights)
    least = model.minimise(weights)
    assert truth - FINE <= least.bound <= truth
    attained, _ = model.values(model.chosen(least.choice), model.visits(model.chosen(least.choice)))
    assert abs(sum(Fraction(w) * v for w, v in zip(weights, attained, strict=True)) - truth) <= FINE
    stopped = model.minimise(weights, stop=lambda: True)
    assert stopped.bound <= truth


def test_units_per_step_and_missing_actions():
    P, mask = np.array([[[0.5, 0.5], [9.0, 9.0]], [[0.0, 1.0], [1.0, 0.0]]]), [[True, False], [True, True]]
    limits = [ck.AtLeast([[1.0, 7.0], [2.0, 3.0]], 1.5, per_step=True)]
    cmdp = ck.CMDP(P, reward=[[1.0, 5.0], [0.0, 2.0]], constraints=limits, gamma=0.75, available=mask, action_axis=1)
    policy = ck.TabularPolicy(np.array([[1.0, 0.0], [0.25, 0.75]]))
    policy = ck.TabularPolicy.over(cmdp.pairs, policy.pi[np.array(mask)])
    values, _ = values_of(RationalModel(cmdp), policy.pi)
    shown = ck.evaluate(cmdp, policy)
    assert float(-values[0]) == pytest.approx(shown.objective, rel=1e-12)
    assert float(1.5 - values[1]) == pytest.approx(shown.constraint_values[0], rel=1e-12)


def test_residuals_are_exact_and_small():
    matrix, rhs = np.array([[7, -2], [-3, 5]], dtype=object), np.array([1 << 90, 1], dtype=object)
    x, bits, rest = solved(matrix, 2, rhs)
    assert (rest == (rhs << (bits + 2)) - matrix @ x).all()
    assert abs(rest).max() < (1 << 90 << bits) >> 600


def test_a_singular_system_is_not_solved_and_its_residual_says_so():
    matrix, rhs = np.array([[1, -1], [-1, 1]], dtype=object), np.array([1, 1], dtype=object)
    x, bits, rest = solved(matrix, 0, rhs)
    assert (rest == (rhs << bits) - matrix @ x).all()
    assert rest.any()


def test_an_average_of_several_classes_has_a_poor_bound_without_a_warning():
    P = np.zeros((2, 2, 2))
    P[0, :, 0] = P[1, :, 1] = 1.0
    cmdp = ck.CMDP(P, cost=[[1.0, 2.0], [3.0, 4.0]], average=True, action_axis=1)
    assert RationalAverages(cmdp).bound([1.0]) <= 1


def test_doubles_around_a_fraction():
    assert Fraction(below(Fraction(1, 3))) < Fraction(1, 3) < Fraction(above(Fraction(1, 3)))
    assert (below(Fraction(10) ** 400), above(-(Fraction(10) ** 400))) == (np.finfo(float).max, -np.finfo(float).max)
    assert (below(-(Fraction(10) ** 400)), above(Fraction(10) ** 400)) == (-np.inf, np.inf)


@pytest.mark.parametrize("seed", range(8))
def test_bounds_on_averages(seed):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(3), size=(3, 2)) * (1.0 + 1e-9 * rng.uniform(-1.0, 1.0, size=(3, 2, 1)))  # sums are off
    limits = [ck.AtMost(rng.random((3, 2)), 0.5)]
    cmdp = ck.CMDP(P, reward=rng.normal(size=(3, 2)), constraints=limits, average=True, action_axis=1)
    for weights in ([1.0, 0.5], [0.0, 1.0]):
        truth = ExactAverages(cmdp).minimum(weights)
        assert truth - FINE <= RationalAverages(cmdp).bound(weights) <= truth
        assert RationalAverages(cmdp).bound(weights, stop=lambda: True) <= truth


@pytest.mark.parametrize("seed", range(6))
def test_averages_of_policies(seed):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(4, 0.3), size=(4, 2)) * (1.0 + 1e-9 * rng.uniform(-1.0, 1.0, size=(4, 2, 1)))
    P[:2, :, 2:] *= 1e-13  # two halves that are hardly ever left
    P[2:, :, :2] *= 1e-13
    P /= P.sum(axis=2, keepdims=True) * (1.0 + 1e-10)
    limits = [ck.AtMost(rng.random((4, 2)), 0.5)]
    cmdp = ck.CMDP(P, reward=rng.normal(size=(4, 2)), constraints=limits, average=True, action_axis=1)
    policy = ck.TabularPolicy(rng.dirichlet(np.ones(2), size=4))
    values, errors = RationalAverages(cmdp).averages(policy.pi)
    for value, error, true in zip(values, errors, ExactAverages(cmdp).values(policy.probabilities), strict=True):
        assert abs(value - true) <= error <= Fraction(1, 2**200)


def test_averages_of_several_classes_are_left_to_others():
    P = np.array([[[1.0, 0.0]], [[0.0, 1.0]]])
    cmdp = ck.CMDP(P, cost=[[1.0], [2.0]], average=True, action_axis=1)
    model, policy = RationalAverages(cmdp), ck.TabularPolicy([[1.0], [1.0]])
    assert model.averages(policy.pi) is None
    assert exact_certificate(model, policy, np.zeros(0), Fraction(1)).objective == pytest.approx(1.5)


def test_an_average_over_parts_that_are_hardly_ever_left():
    """Two states that are left with 1e-12 and 3e-12: h is 1e11 and Th − h rounding. It ended in NUMERICAL_ERROR."""
    P = np.array([[[1.0 - 1e-12, 1e-12]] * 2, [[3e-12, 1.0 - 3e-12]] * 2])
    cmdp = ck.CMDP(P, cost=[[0.1, 0.9], [0.7, 0.3]], average=True, action_axis=1)
    result = ck.solve(cmdp)
    assert result.status is ck.Status.OPTIMAL
    assert result.objective == pytest.approx(0.1 * 0.75 + 0.3 * 0.25, abs=1e-6)
    assert Fraction(result.certificate.bound) <= ExactAverages(cmdp).minimum([1.0])


# -- the master ------------------------------------------------------------------------------------------------------


def solved_by_highs(columns, limits):
    table = np.array(columns, dtype=float).T
    return linprog(table[0], A_ub=table[1:], b_ub=limits, A_eq=np.ones((1, table.shape[1])), b_eq=[1.0])


@pytest.mark.parametrize("seed", range(20))
def test_the_exact_master_agrees_with_highs(seed):
    rng, m = np.random.default_rng(seed), 1 + seed % 4
    master, columns = ExactMaster(m, [Fraction(1)] * m), []
    for _ in range(8):
        column = rng.integers(-4, 5, size=m + 1) if seed % 2 else rng.normal(size=m + 1)  # ties, and none
        columns.append(column.astype(float))
        master.add([Fraction(float(v)) for v in column])
        limits = rng.choice([0.0, 0.5], size=m)
        mixed, answer = master.solve([Fraction(r) for r in limits]), solved_by_highs(columns, limits)
        assert (mixed.excess == 0) == (answer.status == 0)
        assert sum(mixed.weights) == 1
        assert min(mixed.weights) >= 0
        if mixed.excess == 0:
            assert float(mixed.value) == pytest.approx(answer.fun, abs=1e-9)
            used = [
                sum(w * Fraction(float(c[i + 1])) for w, c in zip(mixed.weights, columns, strict=True))
                for i in range(m)
            ]
            assert all(u <= Fraction(r) for u, r in zip(used, limits, strict=True))
            # prices prove it: no column has a smaller Lagrangian
            lagrangians = [
                Fraction(float(c[0]))
                + sum(
                    p * (Fraction(float(v)) - Fraction(r)) for p, v, r in zip(mixed.prices, c[1:], limits, strict=True)
                )
                for c in columns
            ]
            assert min(lagrangians) == mixed.value


# -- the search ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_the_search_agrees_with_the_columns(seed):
    cmdp = random_model(seed, constraints=2)
    search, result = SmallSearch(cmdp, 1e-6), ck.solve(cmdp)
    policies = search.solve()
    if result.status is ck.Status.INFEASIBLE:
        assert next(policies, None) is None
        least = ExactModel(cmdp).minimum([0.0, *search.refuted.weights])
        assert least >= Fraction(search.refuted.margin) > 0
        return
    certificate = exact_certificate(search.model, next(policies), search.multipliers, search.bound)
    assert certificate.optimal(1e-9)
    assert certificate.objective == pytest.approx(result.objective, rel=1e-6)
    assert ExactModel(cmdp).minimum([1.0, *search.multipliers]) >= Fraction(cmdp.sense * certificate.bound)


def test_certificates_of_both_kinds_agree_and_the_exact_one_is_sharper():
    cmdp = random_model(3, constraints=2, states=4)
    policy, lam = ck.TabularPolicy.uniform(cmdp.states, cmdp.actions), np.array([0.5, 2.0])
    model = RationalModel(cmdp)
    bound = model.minimise([1.0, *lam]).bound
    exact, plain = exact_certificate(model, policy, lam, bound), certificate_of(cmdp, policy, lam, float(bound))
    for name in ("objective", "bound", "gap", "violation"):
        assert getattr(exact, name) == pytest.approx(getattr(plain, name), rel=1e-9), name
    np.testing.assert_allclose(exact.constraint_values, plain.constraint_values)
    np.testing.assert_allclose(exact.violations, plain.violations)
    assert 0.0 < exact.accuracy < plain.accuracy


def test_a_bound_is_lowered_to_what_is_attained():
    """The limit is missed by 1e-9 at least, so that bounds have no end; one of them is near the best within `tol`."""
    search = SmallSearch(playing(-1e-9), 1e-6)
    search.ask(np.array([1e12]))
    assert search.bound > 100
    search._lower_to(Fraction(0))
    assert abs(search.bound) <= Fraction(1e-6)
    assert search.bound <= Exact(playing(-1e-9)).minimum([1.0, *search.multipliers])


def test_only_small_models_with_their_own_numbers_are_asked():
    P = np.full((1, 1, 1), 1.0)
    assert is_small(ck.CMDP(P, cost=[[1.0]], gamma=0.5))
    assert is_small(ck.CMDP(P, cost=[[1.0]], average=True))
    assert not is_small(ck.CMDP(P, cost=[[1.0]], horizon=3).lowering.model)
    assert not is_small(ck.CMDP(np.eye(65)[:, None], cost=np.ones((65, 1)), gamma=0.5, action_axis=1))


def test_a_time_limit_holds():
    outcome = ck.solve(playing(1.0), time_limit=0.0)
    assert outcome.status is ck.Status.TIME_LIMIT
    search = SmallSearch(playing(1.0), 1e-6, stop=lambda: True)
    assert list(search.solve()) == []
