"""AR-CPO, accelerated dual descent, OPG-PD and RCPO: one step by hand, optima against the LP, and what they rely on."""

from functools import cache

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar

import cmdpkit as ck
from cmdpkit.learners.exact import ExactLearner
from cmdpkit.learners.tabular import projected
from cmdpkit.model import Pairs
from cmdpkit.rules import ARCPO, OPGPD, RCPO, AcceleratedNPG, View, Weights
from models import lp_optimum, random_model

PAPER = ck.problems.paper()
FEW = ck.Sampling(rollouts=5, value_rollouts=50)


def seen(values, scales=None, gamma=0.0):
    return View(0.0, np.array(values, dtype=float), None if scales is None else np.array(scales), gamma)


# -- one step by hand ------------------------------------------------------------------------------------------------


def test_opg_pd_by_hand():
    rule = OPGPD(eta_dual=0.5, dual_cap=3.0)
    state = rule.start(seen([2.0, -4.0, 8.0]))
    state = state._replace(multipliers=np.array([1.5, 1.0, 2.5]), centre=np.array([0.5, 3.0, 0.5]))
    weights, state = rule.propose(state, seen([2.0, -4.0, 8.0]))
    assert (weights.objective, weights.optimistic, weights.inner_steps) == (1.0, True, 1)
    np.testing.assert_array_equal(weights.constraints, [1.5, 1.0, 2.5])
    state = rule.observe(state, seen([9.0, 9.0, 9.0]))  # the values after the step do not count yet
    # λ̂ = 0.5 + 1, 3 − 2, min(0.5 + 4, 3);  λ = 1.5 + 1, max(1 − 2, 0), 3
    np.testing.assert_array_equal(state.centre, [1.5, 1.0, 3.0])
    np.testing.assert_array_equal(state.multipliers, [2.5, 0.0, 3.0])


def test_accelerated_npg_by_hand():
    rule = AcceleratedNPG(entropy=0.5, eta_dual=2.0)
    state = rule.start(seen([1.0, 1.0]))
    weights, state = rule.propose(state, seen([1.0, 1.0]))
    assert (weights.step, weights.entropy, weights.inner_steps) == (2.0, 0.5, None)
    np.testing.assert_array_equal(weights.constraints, [0.0, 0.0])
    state = rule.observe(state, seen([1.0, -1.0]))  # λ = 2, 0; no momentum in the first step
    np.testing.assert_array_equal([state.multipliers, state.ahead], [[2.0, 0.0], [2.0, 0.0]])
    state = rule.observe(state, seen([-0.5, 3.0]))  # λ = 1, 6;  μ = λ + ¼ (λ − before)
    np.testing.assert_array_equal([state.multipliers, state.ahead], [[1.0, 6.0], [0.75, 7.5]])
    np.testing.assert_array_equal(rule.propose(state, seen([0.0, 0.0]))[0].constraints, [0.75, 7.5])


def test_ar_cpo_by_hand():
    """1/L = 2 and μ = 0.1: η′ = 2/1.2, κ = 1/6, and α = 1, ⅔ (⁴⁄₉ = ⅓ · 1 + κ · ⅔)."""
    rule = ARCPO(entropy=0.5, eta_dual=2.0, dual_weight=0.1, dual_cap=10.0)
    state = rule.start(seen([0.0]))
    weights, state = rule.propose(state, seen([0.0]))
    assert (weights.step, weights.entropy, float(weights.constraints[0])) == (2.0, 0.5, 0.0)
    state = rule.observe(state, seen([3.0]))  # λ = ⁵⁄₃ · 3, and the average is λ
    np.testing.assert_allclose([state.moved[0], state.multipliers[0], state.share], [5.0, 5.0, 2.0 / 3.0])
    state = state._replace(multipliers=np.array([1.0]))
    # λ̲ = (⅓ · 1 + (⅔ − ⅙) · 5) / (1 − ⅙)
    np.testing.assert_allclose(rule.propose(state, seen([0.0]))[0].constraints, [3.4])
    # λ = (1 − ⅙ / ⅔) · 5 + ⁵⁄₃ / ⅔ · 1.5,   λ̄ = ⅓ · 1 + ⅔ · 7.5
    after = rule.observe(state, seen([1.5]))
    np.testing.assert_allclose([after.moved[0], after.multipliers[0]], [7.5, 16.0 / 3.0])
    assert rule.observe(state, seen([4.0])).moved[0] == 10.0
    assert rule.observe(state, seen([-4.0])).moved[0] == 0.0


def test_ar_cpo_without_its_quadratic_term_is_nesterovs_method():
    """κ = 0: α² = (1 − α) αₖ², the sequence t = 1/α with t² = t + tₖ² that starts 1, (1 + √5)/2."""
    rule = ARCPO(entropy=0.5, eta_dual=2.0, dual_weight=0.0, dual_cap=np.inf)
    state = rule.observe(rule.start(seen([0.0])), seen([3.0]))
    assert 1.0 / state.share == pytest.approx(0.5 + 0.5 * np.sqrt(5.0))
    np.testing.assert_allclose(rule.observe(state, seen([1.0])).moved, [6.0 + 2.0 / state.share])


def test_rcpo_by_hand():
    rule = RCPO(eta_dual=0.5, dual_cap=2.0)
    state = rule.start(seen([1.0, 1.0, 1.0]))._replace(multipliers=np.array([0.5, 1.0, 1.5]))
    weights, state = rule.propose(state, seen([9.0, 9.0, 9.0]))
    np.testing.assert_array_equal(weights.constraints, [0.5, 1.0, 1.5])
    np.testing.assert_array_equal(rule.observe(state, seen([1.0, -4.0, 3.0])).multipliers, [1.0, 0.0, 2.0])


@pytest.mark.parametrize("rule", [ARCPO(), AcceleratedNPG()])
def test_default_entropy_and_dual_steps_follow_the_scales(rule):
    """τ = 0.01 · 4, and η′ = 2 τ (1 − γ) / (m span²) with m = 2 and spans 2 and ½."""
    state = rule.start(seen([0.0, 0.0], [4.0, 2.0, 0.5], 0.9))
    assert state.entropy == pytest.approx(0.04)
    # the quadratic term of AR-CPO, τ (span_i / span_0)², makes it smaller: 1/η′ is L + μ
    kappa = 2 * 0.04 * 0.1 / 2 * 0.04 / 16.0 if isinstance(rule, ARCPO) else 0.0
    expected = np.array([2 * 0.04 * 0.1 / 2 / 4.0, 2 * 0.04 * 0.1 / 2 / 0.25]) / (1.0 + kappa)
    np.testing.assert_allclose(state.eta_dual, expected, rtol=1e-12)
    if isinstance(rule, ARCPO):
        np.testing.assert_allclose(state.dual_weight, [0.04 / 4.0, 0.04 / 64.0])
        assert state.concavity == pytest.approx(kappa / (1.0 + kappa))


# -- what they rely on -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_projections_against_a_quadratic_program(seed):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(3, 4)) * 10.0 ** rng.integers(-2, 3)
    pi = projected(Pairs(3, 4), table).probabilities
    for row, found in zip(table, pi, strict=True):
        answer = minimize(
            lambda x, row=row: 0.5 * ((x - row) ** 2).sum() / (1.0 + np.abs(row).max()),
            np.full(4, 0.25),
            bounds=[(0.0, 1.0)] * 4,
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1.0},
            options={"ftol": 1e-14, "maxiter": 500},
        )
        np.testing.assert_allclose(found, answer.x, atol=1e-5)


def test_projections_over_the_actions_that_exist():
    """Two actions in the first state, one in the second: (0.7, 0.1) is 0.1 too little each, and one is always 1."""
    cmdp = ck.CMDP(
        np.full((2, 2, 2), 0.5),
        reward=np.zeros((2, 2)),
        gamma=0.5,
        available=[[True, True], [False, True]],
        action_axis=1,
    )
    np.testing.assert_allclose(projected(cmdp.pairs, np.array([0.7, 0.1, -5.0])).pi, [0.8, 0.2, 1.0])
    np.testing.assert_allclose(projected(cmdp.pairs, np.array([3.0, 0.1, 2.0])).pi, [1.0, 0.0, 1.0])
    np.testing.assert_allclose(projected(cmdp.pairs, np.array([1e17, -1e17, 1e300])).pi, [1.0, 0.0, 1.0])
    np.testing.assert_allclose(projected(cmdp.pairs, np.array([-1e17, -1e17, 0.0])).pi, [0.5, 0.5, 1.0])


def test_an_optimistic_step_by_hand():
    """One state, costs 0 and 1: Q = c, and with the step 0.1 π̂ = (½ + 0.05, ½ − 0.05), π one such move farther."""
    cmdp = ck.CMDP(np.ones((1, 2, 1)), cost=np.array([[0.0, 1.0]]), gamma=0.0, action_axis=1)
    learner = ExactLearner(cmdp, ck.TabularPolicy.uniform(1, 2), step=0.1)
    learner.improve(Weights(1.0, np.zeros(0), optimistic=True))
    np.testing.assert_allclose(learner.policy.probabilities, [[0.6, 0.4]])
    learner.improve(Weights(1.0, np.zeros(0), optimistic=True))  # π̂ = (0.6, 0.4)
    np.testing.assert_allclose(learner.policy.probabilities, [[0.65, 0.35]])


def test_entropy_by_a_closed_form():
    """One state: the optimum of Σ π (c + τ log π) is π ∝ exp(−c/τ), from any policy, in one step of size 1/τ."""
    cost, tau = np.array([[0.3, 1.0, 0.1]]), 0.4
    cmdp = ck.CMDP(np.ones((1, 3, 1)), cost=cost, gamma=0.9, action_axis=1)
    learner = ExactLearner(cmdp, ck.TabularPolicy([[0.9, 0.05, 0.05]]), step=1.0)
    learner.improve(Weights(1.0, np.zeros(0), step=1.0 / tau, entropy=tau))
    expected = np.exp(-cost / tau)
    np.testing.assert_allclose(learner.policy.probabilities, expected / expected.sum(), rtol=1e-12)


# -- optima ----------------------------------------------------------------------------------------------------------

FEASIBLE = [random_model(seed, constraints=m, gamma=0.8, states=12) for seed, m in ((3, 1), (5, 2), (8, 3))]


@pytest.mark.parametrize("cmdp", FEASIBLE)
def test_the_last_iterate_of_opg_pd_is_the_optimum_of_the_lp(cmdp):
    optimum, multipliers = lp_optimum(cmdp)
    result = ck.solve(cmdp, "opg-pd", max_iterations=20_000, tol=1e-6)
    assert result.status is ck.Status.OPTIMAL
    last = ck.evaluate(cmdp, result.last_policy)
    assert last.objective == pytest.approx(optimum, abs=1e-4 * max(1.0, abs(optimum)))
    np.testing.assert_allclose(result.multipliers, np.abs(multipliers), atol=1e-2 * (1.0 + np.abs(multipliers).max()))


@cache
def soft_dual_optimum(cmdp, tau, mu):
    """max_λ min_π V_0 + λ V_1 + τ Σ γᵗ log π − ½ μ λ² for one limit, by soft value iteration and a search in λ."""
    P, cost = cmdp.transitions.reshape(cmdp.states, cmdp.actions, -1), cmdp.costs.reshape(2, cmdp.states, cmdp.actions)

    def dual(lam):
        v = np.zeros(cmdp.states)
        for _ in range(120):
            v = -tau * np.log(np.exp(-(cost[0] + lam * cost[1] + cmdp.gamma * P @ v) / tau).sum(axis=1))
        return -(cmdp.initial @ v - lam * cmdp.offsets[0] - 0.5 * mu * lam**2)

    answer = minimize_scalar(dual, bounds=(0.0, 20.0), method="bounded", options={"xatol": 1e-10})
    return -answer.fun, answer.x


@pytest.mark.parametrize(
    ("method", "options", "mu"),
    [
        ("accelerated-npg", {}, 0.0),
        ("ar-cpo", {"dual_weight": 0.0}, 0.0),
        ("ar-cpo", {"dual_weight": 0.3}, 0.3),
        ("ar-cpo", {}, 0.1 * float(PAPER.spans[1] / PAPER.spans[0]) ** 2),
    ],
)
def test_the_accelerated_duals_end_at_the_optimum_with_entropy(method, options, mu):
    tau = 0.1
    optimum, price = soft_dual_optimum(PAPER, tau, mu)
    result = ck.solve(PAPER, method, entropy=tau, max_iterations=300, tol=0.0, **options)
    found = ck.evaluate(PAPER, result.last_policy)
    entropy = (found.occupancy * result.last_policy.log_probabilities).sum() / (1.0 - PAPER.gamma)
    # 1 − γ makes occupancies probabilities in `evaluate`; λ V_1 − ½ μ λ² is ½ μ λ² at V_1 = μ λ
    assert -found.objective + tau * entropy + 0.5 * mu * price**2 == pytest.approx(optimum, abs=1e-6)
    np.testing.assert_allclose(result.history["multipliers"][-1], [price], atol=1e-4)
    np.testing.assert_allclose(found.constraint_values, PAPER.limits - mu * price, atol=1e-5)


def test_ar_cpo_takes_one_weight_per_multiplier():
    """Every V_i ends at μ_i λ_i: three limits bind in this model."""
    cmdp, weights = random_model(9, constraints=3, gamma=0.8, states=12), np.array([0.2, 0.1, 0.15])
    result = ck.solve(cmdp, "ar-cpo", entropy=0.1, dual_weight=weights, max_iterations=2_000, tol=0.0)
    v, lam = ExactLearner(cmdp, result.last_policy).look().values, result.history["multipliers"][-1]
    assert (lam > 0.03).all()
    np.testing.assert_allclose(v, weights * lam, atol=1e-4)


def test_ar_cpo_with_a_weight_that_leaves_no_room_for_multipliers():
    """κ is 1 by rounding: prices stay at zero, and nothing is divided by 1 − κ."""
    result = ck.solve(PAPER, "ar-cpo", entropy=0.1, dual_weight=1e20, max_iterations=50, tol=0.0)
    assert (abs(result.history["multipliers"]) < 1e-15).all()


@pytest.mark.parametrize("method", ["ar-cpo", "accelerated-npg"])
@pytest.mark.parametrize("cmdp", FEASIBLE)
def test_without_much_entropy_they_end_near_the_optimum_of_the_lp(method, cmdp):
    optimum, _ = lp_optimum(cmdp)
    tau = 1e-3 * float(cmdp.spans[0])
    result = ck.solve(cmdp, method, entropy=tau, max_iterations=1_000, tol=1e-3)
    off = tau * np.log(cmdp.actions) / (1.0 - cmdp.gamma)
    assert abs(result.objective - optimum) <= off + 1e-3 * max(1.0, abs(optimum))
    assert result.certificate.violation <= 1e-3


@pytest.mark.parametrize(
    ("method", "kept"), [("opg-pd", "last"), ("ar-cpo", "last"), ("accelerated-npg", "last"), ("rcpo", "average")]
)
def test_they_learn_from_samples(method, kept):
    few = ck.Sampling(rollouts=10, estimator="pooled")
    result = ck.solve(PAPER, method, sampling=few, max_iterations=80, seed=2)
    found = ck.evaluate(PAPER, result.last_policy if kept == "last" else result.average_policy)
    assert abs(found.objective - ck.solve(PAPER).objective) <= 0.2
    assert found.constraint_values[0] >= PAPER.limits[0] - 0.15


@pytest.mark.parametrize("settings", [{}, {"sampling": FEW}])
@pytest.mark.parametrize("method", ["opg-pd", "ar-cpo", "accelerated-npg", "rcpo"])
def test_their_runs_continue_bit_for_bit(method, settings, tmp_path):
    whole = ck.solve(PAPER, method, max_iterations=9, **settings)
    ck.solve(PAPER, method, max_iterations=4, checkpoint=tmp_path / "run", **settings)
    rest = ck.solve(PAPER, method, max_iterations=9, checkpoint=tmp_path / "run", resume=True, **settings)
    for name in ("objective", "constraint_values", "multipliers"):
        np.testing.assert_array_equal(rest.history[name], whole.history[name])


@pytest.mark.parametrize(
    ("method", "name"), [("ar-cpo", "step"), ("accelerated-npg", "alpha"), ("opg-pd", "inner_steps")]
)
def test_settings_that_a_method_sets_itself_are_not_options(method, name):
    with pytest.raises(ValueError, match=f"unknown option '{name}' for method '{method}'"):
        ck.solve(PAPER, method, **{name: 1})
