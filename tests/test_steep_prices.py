"""Limits at the edge of what is possible: prices are steep, and every rounding error counts as often as they say."""

from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
from scipy.optimize import nnls

import cmdpkit as ck
from cmdpkit.evaluation.bounds import macqueen_bound
from cmdpkit.exact.answer import best_policy
from cmdpkit.exact.columns import ColumnSearch
from cmdpkit.exact.feasibility import meet
from cmdpkit.exact.least_squares import nonnegative_least_squares
from cmdpkit.exact.local import LocalDual
from cmdpkit.exact.search import steps
from cmdpkit.exact.viewpoints import oracle_view
from rational import Exact

TOL = 1e-6


def nearly_constant():
    """A table whose span is 5e-11 of its size, and another that varies in its last bit."""
    P = np.array([[0.6355117870475624, 0.4270666195747494], [0.7574470446031689, 0.9694670009821118]])
    small = np.array([[1000.0000002459673, 1000.0000002267699], [1000.0000000187863, 1000.0000005297751]])
    last = np.array([[1000.0, 1000.0000000000002], [1000.0000000000002, 1000.0]])
    return ck.CMDP(
        np.stack([P, 1.0 - P], axis=2),
        cost=[[-1.0752837923071044, 0.0], [0.0, -2.0041444223683236]],
        constraints=[
            ck.AtMost(small, 1000.0000001282921, "small", per_step=True),
            ck.AtLeast(last, 10000.000000000005, "last"),
        ],
        gamma=0.9,
        initial=[0.01361737927263355, 0.9863826207273665],
    )


def faint_ways():
    """The limit can be met only through transitions of probability 1e-9 and less."""
    out = np.array([2.2238890021499937e-14, 3.5278367408339387e-09, 1.9963665464180214e-13, 3.2928611874637738e-13])
    back = np.array([3.7073631346774352e-14, 8.3702303966311658e-15, 3.7732127052363869e-11, 9.7798304867930178e-15])
    P = np.stack([np.stack([1.0 - out, out], axis=1), np.stack([back, 1.0 - back], axis=1)])
    return ck.CMDP(
        P,
        cost=[[0.8142779457704057, 0.7443983340828341, 0.2904876054521689, 0.0340899488200711], [0.8, 0.5, 1.0, 0.3]],
        constraints=[ck.AtMost([[1.118831538918025] * 4, [0.03003220372309335] * 4], 11.188315043925328)],
        gamma=0.9,
        initial=0,
    )


@pytest.mark.parametrize("model", [nearly_constant, faint_ways])
@pytest.mark.parametrize("method", ["auto", "columns"])
def test_a_steep_price_is_proved(model, method):
    """Such models ended in NUMERICAL_ERROR: the bound loses a rounding error times a price of 1e7 and more."""
    cmdp = model()
    result = ck.solve(cmdp, method, tol=TOL)
    assert result.status is ck.Status.OPTIMAL
    assert result.multipliers.max() > 1e6
    exact = Exact(cmdp)
    v_0, *v = exact.values(exact.normalised(result.policy))
    assert all(x <= Fraction(TOL) * max(1, abs(limit)) for x, limit in zip(v, exact.offsets[1:], strict=True))
    bound = Fraction(cmdp.sense * result.certificate.bound)
    assert abs(v_0 - bound) <= Fraction(TOL) * max(1, abs(v_0))
    assert bound <= exact.minimum([1.0, *result.multipliers])


def test_meeting_a_bound_takes_no_more_of_the_limits_than_it_must():
    """One state, reward and use of action 1 are one unit per step, γ = 1/2: V_0 = −V_use, and the limit is 1."""
    cmdp = ck.CMDP(np.ones((1, 2, 1)), reward=[[0.0, 1.0]], constraints=[ck.AtMost([[0.0, 1.0]], 1.0)], gamma=0.5)
    search = ColumnSearch(cmdp, 0.1)
    for _ in steps(search):
        if search.stuck:
            break
    share = {}
    for bound in (-1.0, -1.07, -3.0):
        meet(search, bound)
        share[bound] = best_policy(search).probabilities[0, 1]
    # the target is 0.05 max(1, |bound|) above the bound, and limits may be exceeded by 0.05; V_use is twice the share
    assert 2.0 * share[-1.0] == pytest.approx(1.0, abs=1e-12)
    assert 2.0 * share[-1.07] == pytest.approx(1.07 - 0.05 * 1.07, abs=1e-12)
    assert 2.0 * share[-3.0] == pytest.approx(1.05, abs=1e-12)


def test_active_sets_do_not_go_round_in_circles():
    """A level problem of two limits and three cuts: in the last row is what rounding has left.

    With more cuts there were 72,000 least-squares problems in one call of `solve`, for two states.
    """
    system = np.array(
        [
            [4.469681992559444e-03, 9.961560149843453e-02, -1.1201846702929173e-01, 0.0],
            [-9.141046418034171e-03, 4.5930781477691507e-01, -1.6745430235989339e-01, -1.0],
            [1.9731091760455399e-13, 7.558953463160378e-13, 5.038747197261273e-13, -1.9999998690874583],
        ]
    )
    target = np.array([0.0, 0.0, 1.0])
    with mock.patch("numpy.linalg.lstsq", wraps=np.linalg.lstsq) as solve:
        x = nonnegative_least_squares(system, target)
    assert solve.call_count <= 8
    np.testing.assert_allclose(x, nnls(system, target)[0], rtol=1e-6)


def test_a_local_model_that_knows_its_greedy_policy_says_so():
    cmdp = faint_ways()
    search = ColumnSearch(cmdp)
    next(steps(search))
    local = LocalDual(cmdp, oracle_view(search), search.scales)
    local.look(np.zeros(1))
    first = local.repeated
    local.look(np.zeros(1))
    assert (first, local.repeated) == (True, True)  # the viewpoint is the best policy at these prices
    local.look(np.full(1, 1e9))
    assert not local.repeated


def test_an_overflow_proves_nothing():
    limits = [ck.AtMost([[1.0]], 1e10), ck.AtLeast([[1.0]], 1e10)]
    cmdp = ck.CMDP(np.ones((1, 1, 1)), cost=[[1.0]], constraints=limits, gamma=0.5)
    with np.errstate(all="ignore"):
        assert macqueen_bound(cmdp, np.array([1.0, 1e300, 1e300]), np.zeros(1)) == -np.inf
