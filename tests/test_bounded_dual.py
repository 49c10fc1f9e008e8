"""Lines of known policies above the dual function: what they say is true, and the dual step heeds them."""

from itertools import islice

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.learners import ExactLearner
from cmdpkit.learners.tabular import LOWEST_LOG_PROBABILITY
from cmdpkit.primal_dual import primal_dual
from cmdpkit.rules.base import View
from cmdpkit.rules.bounded_dual import BoundedDual
from cmdpkit.rules.growing import GrowingPMDPD
from cmdpkit.rules.implicit_dual import ImplicitDual
from models import random_model


@pytest.mark.parametrize("seed", range(8))
def test_divergences_from_the_anchor_are_bounded_when_it_moves(seed):
    """The table bounds D(x_j, x_k) of all policies so far, without their tables; exact for the policy in view."""
    cmdp = random_model(seed, constraints=2, gamma=0.9, states=6)
    learner = ExactLearner(cmdp, ck.TabularPolicy.uniform(cmdp.states, cmdp.actions), floor=LOWEST_LOG_PROBABILITY)
    seen, anchor = [(learner.occupancy, learner.policy.log_pi)], learner.policy.log_pi
    for iterate in islice(primal_dual(learner, GrowingPMDPD()), 7):
        seen.append((learner.occupancy, learner.policy.log_pi))
        anchor = learner.policy.log_pi if iterate.state.rejected == 0 else anchor
        true = np.array([(x * (log_pi - anchor)).sum() for x, log_pi in seen])
        known = iterate.state.known
        np.testing.assert_allclose(known[:, 0], [(x * cmdp.pairs.like(cmdp.costs[0])).sum() for x, _ in seen])
        assert (known[:, 1] >= true - 1e-6 * np.abs(true).max()).all()
        assert known[-1, 1] == pytest.approx(true[-1], abs=1e-9)


class Planes(View):
    """A policy whose response is its own line, V_0 + w V."""

    def response(self, prices, step, keep_anchor=False):
        class Line:
            soft_minimum, values, gram = 0.0, self.units * self.values, np.zeros((1, 1))

        return Line


def test_a_price_that_a_line_excludes_is_not_taken():
    """Lines 1 + w and 3 − w meet at w = 1; the first alone asks for η′ V = 1,000, and so it does below a line."""
    view = Planes(1.0, np.array([1.0]), np.ones(2), 0.9)
    here, other, high = [1.0, 0.0, 1.0], [2.0, 50.0, -1.0], [3_000.0, 0.0, -1.0]
    numbers = view, 50.0, np.zeros(1), np.array([1_000.0])
    np.testing.assert_allclose(ImplicitDual(*numbers).maximise(), 1_000.0, rtol=1e-9)
    np.testing.assert_allclose(BoundedDual(np.array([high, here]), *numbers).maximise(), 1_000.0, rtol=1e-9)
    np.testing.assert_allclose(BoundedDual(np.array([other, here]), *numbers).maximise(), 1.0, atol=0.01)


def test_candidates_do_not_alternate_between_two_prices():
    """Around the unsafe field no price is needed, through it a high one: 79 steps without lines, in cycles of three."""
    cmdp = ck.problems.grid(rows=44, columns=44, gamma=0.999)
    result = ck.solve(cmdp, "pmd-pd")
    assert result.status is ck.Status.OPTIMAL
    assert result.iterations <= 20
    assert result.objective == pytest.approx(ck.solve(cmdp).objective, rel=3e-6)
