"""Models of extreme scale: solved in even units, without a warning, and told in the user's."""

from fractions import Fraction

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.exact.balance import Balance
from fuzz.exact import ExactModel
from fuzz.judge import Judge, slater_bracket
from fuzz.models import FAMILIES
from rational import Exact


def choice_model(reward_unit, use_unit, limit=1.0):
    """One state, γ = 1/2: action 1 earns and uses one unit per step. The best policy uses all of `limit`."""
    use = ck.AtMost([[0.0, use_unit]], limit * use_unit, name="use")
    return ck.CMDP(np.ones((1, 2, 1)), reward=[[0.0, reward_unit]], constraints=[use], gamma=0.5)


UNITS = [(1e-200, 1.0), (1e120, 1e-120), (1.0, 1e-310), (1e-300, 1e-300), (1e140, 1e140), (1e-80, 1e75)]


PRICED = [units for units in UNITS if units[0] / units[1] < 1e300]
"""Units in which the shadow price, reward per use, is a floating-point number."""


@pytest.mark.parametrize(("reward", "use"), PRICED)
@pytest.mark.parametrize("method", ["auto", "columns", "pmd-pd", "lp"])
def test_the_answer_does_not_depend_on_the_units(reward, use, method):
    cmdp = choice_model(reward, use)
    assert cmdp.is_extreme
    result = ck.solve(cmdp, method)
    assert result.status is ck.Status.OPTIMAL
    assert result.objective == pytest.approx(reward, rel=1e-5)
    assert result.constraint_values[0] == pytest.approx(use, rel=1e-5)
    assert result.multipliers[0] == pytest.approx(reward / use, rel=1e-5)
    assert result.history["multipliers"][-1, 0] == pytest.approx(reward / use, rel=1e-2)


@pytest.mark.parametrize(("reward", "use"), UNITS)
@pytest.mark.parametrize("method", ["npg-pd", "crpo", "pmd-pd"])
def test_histories_are_in_the_users_units(reward, use, method):
    history = ck.solve(choice_model(reward, use), method, max_iterations=20, tol=0.0).history
    # what is used is what is earned: one unit each for action 1
    earned, used = history["objective"] / reward, history["constraint_values"][:, 0] / use
    np.testing.assert_allclose(earned, used, rtol=1e-9, atol=1e-12)
    assert 0.0 < history["objective"][-1] / reward <= 2.0
    np.testing.assert_allclose(
        history["violation"] / use, np.maximum(history["constraint_values"][:, 0] / use - 1.0, 0.0), atol=1e-9
    )


@pytest.mark.parametrize(("reward", "use"), UNITS)
def test_proofs_are_carried_back(reward, use):
    """Bounds and Farkas margins hold in exact arithmetic for the multipliers that are reported."""
    cmdp = choice_model(reward, use)
    for certificate in (ck.solve(cmdp).certificate, ck.certify(cmdp, [[0.5, 0.5]])):
        least = Exact(cmdp).minimum(np.append(1.0, certificate.multipliers))
        assert least >= -Fraction(certificate.bound)
        if (reward, use) in PRICED:
            assert certificate.bound == pytest.approx(reward, rel=1e-6)
    impossible = choice_model(reward, use, limit=-1.0)
    for certificate in (ck.solve(impossible).certificate, ck.certify(impossible, [[0.5, 0.5]])):
        assert certificate.infeasibility is not None
        least = Exact(impossible).minimum(np.append(0.0, certificate.infeasibility))
        assert least >= Fraction(certificate.infeasibility_margin) > 0


def test_even_units_are_powers_of_two():
    cmdp = choice_model(3e-200, 5e100)
    balance = Balance(cmdp)
    np.testing.assert_array_equal(np.ldexp(balance.even.objective, balance.exponents[0]), cmdp.objective)
    assert (balance.even.cost_sizes >= 0.5).all()
    assert (balance.even.cost_sizes <= 1.0).all()
    lam, bound = balance.dual(np.array([0.75]), -2.0)
    assert lam[0] == np.ldexp(0.75, balance.exponents[0] - balance.exponents[1])
    assert bound == pytest.approx(np.ldexp(-2.0, balance.exponents[0]))


@pytest.mark.parametrize(("reward", "use"), UNITS)
def test_slater_margins(reward, use):
    assert ck.slater_margin(choice_model(reward, use, limit=1.0)) == pytest.approx(use, rel=1e-6)
    assert ck.slater_margin(choice_model(reward, use, limit=-1.0)) == pytest.approx(-use, rel=1e-6)


def test_the_users_numbers_mean_nothing_in_even_units():
    with pytest.raises(ValueError, match=r"step cannot be given for costs of sizes .*other units"):
        ck.solve(choice_model(1e-200, 1.0), "npg-pd", step=1.0)
    for name, refused in (("slater", lambda: ck.slater_margin("x")), ("certify", lambda: ck.certify("x", None))):
        with pytest.raises(TypeError, match="CMDP"):
            refused()
        assert name


def test_callbacks_hear_the_users_units():
    heard = []
    ck.solve(choice_model(1e-200, 1e100), "npg-pd", max_iterations=3, tol=0.0, callback=heard.append)
    assert len(heard) == 3
    assert 0.0 < heard[-1].objective <= 2.1e-200
    assert 0.0 < heard[-1].constraint_values[0] <= 2.1e100


def test_a_tensor_that_requires_gradients_is_a_type_error():
    import torch

    with pytest.raises(TypeError, match="reward cannot be read as an array"):
        ck.CMDP(np.ones((1, 1, 1)), reward=torch.zeros(1, 1, requires_grad=True), gamma=0.5)


def test_a_slater_margin_that_the_columns_see_only_with_relaxed_limits():
    """The limits are missed by 0.386 where values reach 3e5; the search for the margin gets stuck once on its way."""
    cmdp = FAMILIES["far_sighted"](np.random.default_rng([101, 3560]))
    low, high = slater_bracket(ExactModel(cmdp))
    assert float(high) < 0.0
    assert ck.slater_margin(cmdp) == pytest.approx(float(low), rel=1e-4)


def test_a_limit_beyond_the_range_of_doubles_in_units_of_its_cost():
    """Costs of 1e-310 against a limit of -4e-3: refuted, also by the LP."""
    cmdp = FAMILIES["against"](np.random.default_rng([7, 43]))
    for method in ("auto", "lp"):
        assert ck.solve(cmdp, method).status is ck.Status.INFEASIBLE


UNPROVED = [
    ("scales", 304, 337),  # refuted by weights that differ by a factor of 1e146
    ("scales", 304, 7584),  # a limit of 1e107 that is missed by a rounding error
    ("scales", 304, 3987),
    ("against", 304, 4659),  # costs of 1e100 that must cancel to meet a limit of 1e-100
    ("against", 304, 5303),  # a price beyond the range of doubles
    ("against", 304, 4740),
    ("far_sighted", 304, 5150),  # limits that exclude each other by 1e-9 of their size
    ("duplicates", 304, 7184),
    ("scales", 305, 7449),  # a limit that overflows in units of what its cost can change
]
"""Models that ended in NUMERICAL_ERROR: small enough for exact arithmetic."""


@pytest.mark.parametrize(("family", "seed", "index"), UNPROVED)
def test_what_double_precision_cannot_prove_exact_arithmetic_does(family, seed, index):
    cmdp = FAMILIES[family](np.random.default_rng([seed, index]))
    result = ck.solve(cmdp, tol=1e-6)
    assert result.status in (ck.Status.OPTIMAL, ck.Status.INFEASIBLE)
    assert Judge(cmdp).result(result, 1e-6, "auto") == []
