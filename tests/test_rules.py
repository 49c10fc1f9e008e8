"""Rules: one hand-computed step each, and the invariants of Lemma 1."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cmdpkit.rules import CRPO, NPG, NPGPD, PMDPD


def test_pmdpd_by_hand():
    rule = PMDPD(eta_dual=0.5)
    v, v_next, lam = np.array([-2.0, 1.0]), np.array([4.0, -6.0]), np.array([1.5, 0.25])
    # λ₀ = max(0, −0.5·(−2)), max(0, −0.5·1)
    np.testing.assert_array_equal(rule.start(v), [1.0, 0.0])
    # 1.5 + 0.5·(−2), 0.25 + 0.5·1
    weights = rule.weights(lam, v)
    assert weights.objective == 1.0
    np.testing.assert_array_equal(weights.constraints, [0.5, 0.75])
    # max(−2, 1.5 + 2), max(3, 0.25 − 3)
    np.testing.assert_array_equal(rule.update(lam, v, v_next), [3.5, 3.0])


def test_npgpd_by_hand_uses_the_values_before_the_step():
    rule = NPGPD(eta_dual=0.5, dual_cap=2.0)
    v, v_next, lam = np.array([1.0, -4.0, 9.0]), np.array([-7.0, -7.0, -7.0]), np.array([0.25, 1.0, 1.5])
    np.testing.assert_array_equal(rule.start(v), np.zeros(3))
    np.testing.assert_array_equal(rule.weights(lam, v).constraints, lam)
    # 0.25 + 0.5, max(1 − 2, 0), min(1.5 + 4.5, 2)
    np.testing.assert_array_equal(rule.update(lam, v, v_next), [0.75, 0.0, 2.0])


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
    weights = CRPO(tolerance=0.1).weights(np.zeros(2), np.array(v))
    assert weights.objective == objective
    np.testing.assert_array_equal(weights.constraints, constraints)


@pytest.mark.parametrize(
    ("v", "stepped_on", "step"),
    [([1.0, 9.0, -5.0], 0, 0.6), ([-1.0, 9.0, -5.0], 1, 0.3), ([-1.0, 2.0, 9.0], 1, 0.6), ([5.0, 5.0, 5.0], 0, 0.6)],
)
def test_crpo_by_the_first_violated_constraint_with_steps_by_their_number(v, stepped_on, step):
    weights = CRPO(first=True, steps=(0.1, 0.3, 0.6)).weights(np.zeros(3), np.array(v))
    np.testing.assert_array_equal(weights.constraints, np.eye(3)[stepped_on])
    assert (weights.objective, weights.step) == (0.0, step)  # the last size serves three and more as well
    assert CRPO(steps=(0.1, 0.3)).weights(np.zeros(1), np.array([-1.0])).step == 0.1
    assert CRPO().weights(np.zeros(1), np.array([1.0])).step is None


def test_npg_sees_only_the_objective():
    weights = NPG().weights(NPG().start(np.array([3.0])), np.array([3.0]))
    assert weights.objective == 1.0
    assert weights.constraints == [0.0]


values = arrays(float, (12, 3), elements=st.floats(-50.0, 50.0))


@given(values, st.floats(1e-3, 10.0))
def test_lemma_1(sequence, eta_dual):
    """λ ≥ 0, λ + η′V ≥ 0, |λ₀| ≤ |η′V₀| and |λ_k| ≥ |η′V_k| for k > 0, whatever the values are."""
    rule = PMDPD(eta_dual)
    v = sequence[0]
    lam = rule.start(v)
    assert (np.abs(lam) <= np.abs(eta_dual * v)).all()
    assert (lam >= 0.0).all()
    assert (lam + eta_dual * v >= 0.0).all()
    for v_next in sequence[1:]:
        lam = rule.update(lam, v, v_next)
        v = v_next
        assert (lam >= 0.0).all()
        assert (rule.weights(lam, v).constraints >= 0.0).all()
        assert (np.abs(lam) >= np.abs(eta_dual * v)).all()


@given(values, st.floats(1e-3, 10.0), st.floats(0.0, 20.0))
def test_npgpd_stays_in_its_box(sequence, eta_dual, cap):
    rule = NPGPD(eta_dual, cap)
    lam = rule.start(sequence[0])
    for v, v_next in pairwise(sequence):
        lam = rule.update(lam, v, v_next)
        assert ((lam >= 0.0) & (lam <= cap)).all()
