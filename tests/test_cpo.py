"""CPO and PCPO: their steps against quadratic programs solved by SciPy, and short runs on environments."""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.optimize import minimize

from cmdpkit.rules import CPO, PCPO, View
from cmdpkit.rules.base import Prediction

RADIUS, LENGTH = 0.02, 10.0


@dataclass(frozen=True)
class Local(View):
    found: Prediction | None = None

    @property
    def prediction(self):
        return self.found


def given(values, gradients, fisher, deviations):
    """A view with gradients (m + 1, n) of standardised advantages in the metric F."""
    products = gradients @ np.linalg.solve(fisher, gradients.T)
    found = Prediction(np.array(deviations), products, products, RADIUS, LENGTH)
    return Local(0.0, np.array(values, dtype=float), found=found)


def case(seed, m, excess):
    """Random gradients and metric; limits that are exceeded by `excess` of what a step of the radius can do."""
    rng = np.random.default_rng(seed)
    n = m + 4
    root = rng.normal(size=(n, n))
    fisher = root @ root.T / n + 0.1 * np.eye(n)
    gradients, deviations = rng.normal(size=(m + 1, n)), 10.0 ** rng.uniform(-2, 2, m + 1)
    reach = np.sqrt(2.0 * RADIUS * np.diag(gradients @ np.linalg.solve(fisher, gradients.T)))[1:]
    values = LENGTH * deviations[1:] * reach * rng.uniform(-1.0, 1.0, m) * excess
    return gradients, fisher, deviations, values


def step_of(weights, gradients, fisher, deviations):
    """−step · F⁻¹ Σ w_j σ_j g_j, to the boundary where no step is given."""
    mixed = np.append(weights.objective, weights.constraints) * deviations @ gradients
    along = np.linalg.solve(fisher, mixed)
    size = np.sqrt(2.0 * RADIUS / (along @ fisher @ along)) if weights.step is None else weights.step
    return -size * along


def program(objective, gradients, fisher, deviations, values, quadratic):
    """SciPy's answer: the objective within V_i + length σ_i g_iᵀs ≤ 0 and, if `quadratic`, ½ sᵀFs ≤ δ."""

    def inside(i):
        return lambda s: -values[i] / (LENGTH * deviations[i + 1]) - gradients[i + 1] @ s

    limits = [{"type": "ineq", "fun": inside(i)} for i in range(len(values))]
    if quadratic:
        limits.append({"type": "ineq", "fun": lambda s: RADIUS - 0.5 * s @ fisher @ s})
    best = None
    for seed in range(3):
        start = 0.01 * np.random.default_rng(seed).normal(size=len(fisher))
        answer = minimize(objective, start, constraints=limits, method="SLSQP", options={"ftol": 1e-15, "maxiter": 500})
        if answer.success and (best is None or answer.fun < best.fun):
            best = answer
    return best


# F = I, g_0 = (1, 0) and g_1 = (−0.6, 0.8), δ = 0.02: steps have at most the length 0.2
BY_HAND = np.array([[1.0, 0.0], [-0.6, 0.8]])


def test_cpo_by_hand():
    """g_1ᵀs = −0.12 leaves √(0.2² − 0.12²) = 0.16 along −(0.8, 0.6), across g_1: s = −0.2 g_0 − 0.24 g_1."""
    view, rule = given([1.2], BY_HAND, np.eye(2), [1.0, 1.0]), CPO()
    weights, state = rule.propose(rule.start(view), view)
    assert (weights.objective, weights.step) == (1.0, pytest.approx(0.2, rel=1e-4))
    np.testing.assert_allclose(weights.constraints, [1.2], rtol=1e-4)
    np.testing.assert_allclose(step_of(weights, BY_HAND, np.eye(2), np.ones(2)), [-0.056, -0.192], rtol=1e-4)
    np.testing.assert_array_equal(weights.allowed_growth, [0.0])
    np.testing.assert_array_equal(state.multipliers, weights.constraints)
    # a violation of 3 needs a step of length 0.3: recover, along −g_1 to the boundary
    view = given([3.0], BY_HAND, np.eye(2), [1.0, 1.0])
    weights, _ = rule.propose(rule.start(view), view)
    assert (weights.objective, weights.step) == (0.0, None)
    np.testing.assert_allclose(step_of(weights, BY_HAND, np.eye(2), np.ones(2)), [0.12, -0.16], rtol=1e-4)


def test_pcpo_by_hand():
    """t = 0.2, and ν = (0.5/10 + 0.2 · 0.6)₊ / 1 = 0.17."""
    view, rule = given([0.5], BY_HAND, np.eye(2), [1.0, 1.0]), PCPO()
    weights, _ = rule.propose(rule.start(view), view)
    assert (weights.objective, weights.step) == (1.0, pytest.approx(0.2, rel=1e-4))
    np.testing.assert_allclose(weights.constraints, [0.17 / 0.2], rtol=1e-4)


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_a_step_of_cpo_against_a_quadratic_program(seed, m):
    gradients, fisher, deviations, values = case(seed, m, 0.6 / m)
    view, rule = given(values, gradients, fisher, deviations), CPO()
    weights, state = rule.propose(rule.start(view), view)
    expected = program(lambda s: gradients[0] @ s, gradients, fisher, deviations, values, quadratic=True)
    found = step_of(weights, gradients, fisher, deviations)
    assert 0.5 * found @ fisher @ found <= RADIUS * (1.0 + 1e-6)
    assert (values / (LENGTH * deviations[1:]) + gradients[1:] @ found <= 1e-4 * np.abs(gradients).max()).all()
    assert gradients[0] @ found == pytest.approx(expected.fun, abs=2e-4 * np.linalg.norm(gradients[0]))
    np.testing.assert_allclose(weights.allowed_growth, np.maximum(0.0, -values))
    assert (state.multipliers >= 0.0).all()


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_out_of_reach_cpo_recovers_towards_the_nearest_step(seed, m):
    gradients, fisher, deviations, _ = case(seed, m, 1.0)
    values = 4.0 * LENGTH * deviations[1:]
    view, rule = given(values, gradients, fisher, deviations), CPO()
    weights, _ = rule.propose(rule.start(view), view)
    assert (weights.objective, weights.step, weights.allowed_growth) == (0.0, None, None)
    nearest = program(lambda s: 0.5 * s @ fisher @ s, gradients, fisher, deviations, values, quadratic=False).x
    found = step_of(weights, gradients, fisher, deviations)
    cosine = found @ fisher @ nearest / np.sqrt((found @ fisher @ found) * (nearest @ fisher @ nearest))
    assert cosine == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_a_step_of_pcpo_is_the_projection_of_the_step_on_the_objective(seed, m):
    gradients, fisher, deviations, values = case(seed, m, 0.6)
    view, rule = given(values, gradients, fisher, deviations), PCPO()
    weights, _ = rule.propose(rule.start(view), view)
    along = np.linalg.solve(fisher, gradients[0])
    free = -np.sqrt(2.0 * RADIUS / (along @ fisher @ along)) * along
    expected = program(lambda s: 0.5 * (s - free) @ fisher @ (s - free), gradients, fisher, deviations, values, False)
    np.testing.assert_allclose(step_of(weights, gradients, fisher, deviations), expected.x, atol=2e-3)


@pytest.mark.parametrize("rule", [CPO(), PCPO()])
def test_far_inside_the_limits_the_step_is_on_the_objective_alone(rule):
    gradients, fisher, deviations, _ = case(1, 2, 1.0)
    view = given([-1e6, -1e6], gradients, fisher, deviations)
    weights, _ = rule.propose(rule.start(view), view)
    np.testing.assert_array_equal(weights.constraints, [0.0, 0.0])
    found = step_of(weights, gradients, fisher, deviations)
    assert 0.5 * found @ fisher @ found == pytest.approx(RADIUS, rel=1e-5)


@pytest.mark.parametrize("rule", [CPO(), PCPO()])
def test_costs_that_do_not_vary_are_left_out(rule):
    gradients, fisher, deviations, values = case(2, 2, 0.3)
    gradients[1], deviations[1] = 0.0, 0.0
    view = given([5.0, values[1]], gradients, fisher, deviations)
    alone = given(values[1:], gradients[[0, 2]], fisher, deviations[[0, 2]])
    both, one = rule.propose(rule.start(view), view)[0], rule.propose(rule.start(alone), alone)[0]
    assert both.constraints[0] == 0.0
    assert both.constraints[1] == pytest.approx(one.constraints[0])
    assert both.step == pytest.approx(one.step)
    view = given([5.0, values[1]], 0.0 * gradients, fisher, 0.0 * deviations)  # nothing varies at all
    assert rule.propose(rule.start(view), view)[0].constraints.tolist() == [0.0, 0.0]
