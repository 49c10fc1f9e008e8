"""Rules: one hand-computed step each, and the invariants of Lemma 1."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import cmdpkit as ck
from cmdpkit.rules import CRPO, NPG, NPGPD, PMDPD, AugmentedLagrangian, PIDLagrangian, View


def seen(values, objective=0.0):
    return View(objective, np.array(values, dtype=float))


def one_step(rule, state, before, after):
    """Weights, and the multipliers after a step from values `before` to values `after`."""
    weights, state = rule.propose(state, seen(before))
    return weights, rule.observe(state, seen(after)).multipliers


def test_pmdpd_by_hand():
    rule = PMDPD(eta_dual=0.5)
    # λ₀ = max(0, −0.5·(−2)), max(0, −0.5·1)
    start = rule.start(seen([-2.0, 1.0]))
    np.testing.assert_array_equal(start.multipliers, [1.0, 0.0])
    state = start._replace(multipliers=np.array([1.5, 0.25]))
    weights, lam = one_step(rule, state, [-2.0, 1.0], [4.0, -6.0])
    # 1.5 + 0.5·(−2), 0.25 + 0.5·1
    assert weights.objective == 1.0
    np.testing.assert_array_equal(weights.constraints, [0.5, 0.75])
    # max(−2, 1.5 + 2), max(3, 0.25 − 3)
    np.testing.assert_array_equal(lam, [3.5, 3.0])


def test_npgpd_by_hand_uses_the_values_before_the_step():
    rule = NPGPD(eta_dual=0.5, dual_cap=2.0)
    before = [1.0, -4.0, 9.0]
    np.testing.assert_array_equal(rule.start(seen(before)).multipliers, np.zeros(3))
    state = rule.start(seen(before))._replace(multipliers=np.array([0.25, 1.0, 1.5]))
    weights, lam = one_step(rule, state, before, [-7.0, -7.0, -7.0])
    np.testing.assert_array_equal(weights.constraints, [0.25, 1.0, 1.5])
    # 0.25 + 0.5, max(1 − 2, 0), min(1.5 + 4.5, 2)
    np.testing.assert_array_equal(lam, [0.75, 0.0, 2.0])


def test_default_dual_steps_follow_the_scales():
    """η′ = 3 (1 − γ) span(c_0) / span(c_i)²: 3 · 0.1 · 4 / 2² and 3 · 0.1 · 4 / 0.5²."""
    view = View(0.0, np.zeros(2), np.array([4.0, 2.0, 0.5]), 0.9)
    for rule in (PMDPD(), NPGPD()):
        np.testing.assert_allclose(rule.start(view).eta_dual, [0.3, 4.8], rtol=1e-14)
    np.testing.assert_array_equal(view.units, [2.0, 8.0])


def propose(rule, values):
    return rule.propose(rule.start(seen(values)), seen(values))[0]


@pytest.mark.parametrize(
    ("v", "objective", "constraints"),
    [
        ([-1.0, -0.2], 1.0, [0.0, 0.0]),  # safely inside: the objective
        ([0.3, 0.5], 0.0, [0.0, 1.0]),  # the most violated
        ([-1.0, -0.05], 0.0, [0.0, 1.0]),  # inside the safety margin counts as violated
        ([-0.1, -0.1], 1.0, [0.0, 0.0]),  # on the margin does not
    ],
)
def test_crpo_by_hand(v, objective, constraints):
    weights = propose(CRPO(tolerance=0.1), v)
    assert weights.objective == objective
    np.testing.assert_array_equal(weights.constraints, constraints)


@pytest.mark.parametrize(
    ("v", "stepped_on", "radius"),
    [([1.0, 9.0, -5.0], 0, 0.6), ([-1.0, 9.0, -5.0], 1, 0.3), ([-1.0, 2.0, 9.0], 1, 0.6), ([5.0, 5.0, 5.0], 0, 0.6)],
)
def test_crpo_by_the_first_violated_constraint_with_radii_by_their_number(v, stepped_on, radius):
    weights = propose(CRPO(first=True, radii=(0.1, 0.3, 0.6)), v)
    np.testing.assert_array_equal(weights.constraints, np.eye(3)[stepped_on])
    assert (weights.objective, weights.radius) == (0.0, radius)  # the last one serves three and more as well
    assert weights.step is None
    assert propose(CRPO(radii=(0.1, 0.3)), [-1.0]).radius == 0.1
    assert propose(CRPO(), [1.0]).radius is None


def test_npg_sees_only_the_objective():
    weights = propose(NPG(), [3.0])
    assert weights.objective == 1.0
    assert weights.constraints == [0.0]


def test_pid_lagrangian_by_hand():
    rule = PIDLagrangian(kp=2.0, ki=0.5, kd=10.0)
    state = rule.start(seen([1.0, -4.0, 0.0]))
    np.testing.assert_array_equal(state.multipliers, np.zeros(3))
    _, state = rule.propose(state, seen([1.0, -4.0, 0.0]))
    state = rule.observe(state, seen([3.0, -1.0, -1.0]))
    # I = (3)₊, (−1)₊, (−1)₊;  λ = 2·3 + 0.5·3 + 10·2,  (−2 + 0 + 10·3)₊,  (−2 + 0 + 0)₊
    np.testing.assert_array_equal(state.multipliers, [27.5, 28.0, 0.0])
    weights, state = rule.propose(state, seen([3.0, -1.0, -1.0]))
    assert weights.objective == pytest.approx(1.0 / 56.5)
    np.testing.assert_allclose(weights.constraints, np.array([27.5, 28.0, 0.0]) / 56.5)
    state = rule.observe(state, seen([1.0, 2.0, 4.0]))
    # I = 3 + 1, (0 + 2), (0 + 4);  λ = 2 + 2 + 0,  4 + 1 + 30,  8 + 2 + 50
    np.testing.assert_array_equal(state.multipliers, [4.0, 35.0, 60.0])


def test_pid_lagrangian_sums_multipliers_in_their_units():
    """Scales 4, 2 and 0.5 make the units 2 and 8: λ = (6, 8) is 3 + 1 units, and the weights are divided by 1 + 4."""
    view = View(0.0, np.zeros(2), np.array([4.0, 2.0, 0.5]), 0.9)
    rule = PIDLagrangian()
    state = rule.start(view)._replace(multipliers=np.array([6.0, 8.0]))
    weights, _ = rule.propose(state, view)
    assert weights.objective == pytest.approx(1.0 / 5.0)
    np.testing.assert_allclose(weights.constraints, [6.0 / 5.0, 8.0 / 5.0])


def test_augmented_lagrangian_by_hand():
    rule = AugmentedLagrangian(penalty=4.0, eta_dual=0.5)
    state = rule.start(seen([1.0, -3.0]))._replace(multipliers=np.array([0.5, 2.0]))
    weights, lam = one_step(rule, state, [1.0, -3.0], [2.0, -8.0])
    # (0.5 + 4·1)₊, (2 − 12)₊;  then (0.5 + 0.5·2)₊, (2 − 4)₊
    np.testing.assert_array_equal(weights.constraints, [4.5, 0.0])
    np.testing.assert_array_equal(lam, [1.5, 0.0])


@pytest.mark.parametrize("name", ["pid-lagrangian", "augmented-lagrangian"])
@pytest.mark.parametrize("model", [ck.problems.paper(), ck.problems.garnet(states=30, constraints=2, seed=4)])
def test_the_newer_rules_reach_the_optimum(name, model):
    """Their last iterates converge, at the default gains, whatever the units."""
    result = ck.solve(model, name, max_iterations=4_000, tol=1e-5)
    assert result.status is ck.Status.OPTIMAL
    assert result.objective == pytest.approx(ck.solve(model).objective, rel=2e-5)


values = arrays(float, (12, 3), elements=st.floats(-50.0, 50.0))


@given(values, st.floats(1e-3, 10.0))
def test_lemma_1(sequence, eta_dual):
    """λ ≥ 0, λ + η′V ≥ 0, |λ₀| ≤ |η′V₀| and |λ_k| ≥ |η′V_k| for k > 0, whatever the values are."""
    rule = PMDPD(eta_dual)
    v = sequence[0]
    state = rule.start(seen(v))
    assert (np.abs(state.multipliers) <= np.abs(eta_dual * v)).all()
    assert (state.multipliers >= 0.0).all()
    assert (state.multipliers + eta_dual * v >= 0.0).all()
    for v in sequence[1:]:
        state = rule.observe(state, seen(v))
        assert (state.multipliers >= 0.0).all()
        assert (rule.propose(state, seen(v))[0].constraints >= 0.0).all()
        assert (np.abs(state.multipliers) >= np.abs(eta_dual * v)).all()


@given(values, st.floats(1e-3, 10.0), st.floats(0.0, 20.0))
def test_npgpd_stays_in_its_box(sequence, eta_dual, cap):
    rule = NPGPD(eta_dual, cap)
    state = rule.start(seen(sequence[0]))
    for v, v_next in pairwise(sequence):
        _, state = rule.propose(state, seen(v))
        state = rule.observe(state, seen(v_next))
        assert ((state.multipliers >= 0.0) & (state.multipliers <= cap)).all()
