"""Random models of long-run averages against independent LPs: unichain, communicating, multichain, degenerate.

In blocks, so that they can run side by side: 320 models in which every policy comes back to a state, 100 in which
policies may stay in parts that communicate, and 100 with several classes.
"""

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.run.status import Status
from long_run import average_lp, communicating, multichain, unichain

METHODS = ("auto", "columns", "lp", "pmd-pd")


@pytest.mark.parametrize("block", range(20))
def test_models_whose_policies_come_back(block):
    """`auto` and one of the other methods in turn find the optimum of the LP, or refute the limits as it does."""
    for seed in range(16 * block, 16 * (block + 1)):
        cmdp = unichain(seed)
        truth = average_lp(cmdp)
        for method in ("auto", METHODS[1 + seed % 3]):
            result = ck.solve(cmdp, method)
            if truth is None:
                assert result.status is Status.INFEASIBLE, (seed, method, result.status)
                _check_refutation(cmdp, result.certificate)
                continue
            assert result.status is Status.OPTIMAL, (seed, method, result.status, result.certificate)
            assert result.objective == pytest.approx(truth, abs=3e-6 * max(1.0, abs(truth))), (seed, method)
            objective, values = ck.long_run_averages(cmdp, result.policy)
            assert result.objective == pytest.approx(objective, abs=1e-8)
            np.testing.assert_allclose(result.constraint_values, values, atol=1e-8)
            if method != "pmd-pd" and len(cmdp.constraints) < 2:
                assert len(result.policy.randomised_states()) <= len(cmdp.constraints), (seed, method)


def _check_refutation(cmdp, certificate):
    """The weighted excess over the limits is positive for every policy, by an LP that knows one cost and no limit."""
    y = cmdp.row_prices(certificate.infeasibility)
    assert (y >= 0.0).all()
    weighted = cmdp.pairs.table(cmdp.pairs.like(y @ cmdp.costs[1:]), 0.0)
    plain = cmdp.with_objective(cost=weighted).with_limits(dict.fromkeys(cmdp.names))
    assert average_lp(plain) > float(y @ cmdp.offsets)


@pytest.mark.parametrize("block", range(5))
def test_models_that_communicate(block):
    """Limits may need several parts of a model, which a policy must join: exact methods prove all of them."""
    for seed in range(20 * block, 20 * (block + 1)):
        cmdp = communicating(seed)
        truth = average_lp(cmdp)
        for method in ("auto", "lp"):
            result = ck.solve(cmdp, method)
            if truth is None:
                assert result.status is Status.INFEASIBLE, (seed, method, result.status)
                continue
            assert result.status is Status.OPTIMAL, (seed, method, result.status, result.certificate)
            assert result.objective == pytest.approx(truth, abs=5e-6 * max(1.0, abs(truth))), (seed, method)
            objective, values = ck.long_run_averages(cmdp, result.policy)  # of the policy itself, from its start
            assert objective == pytest.approx(truth, abs=1e-5 * max(1.0, abs(truth))), (seed, method)
            assert (values <= np.array([c.limit for c in cmdp.constraints]) + 1e-5).all(), (seed, method)


@pytest.mark.parametrize("block", range(5))
def test_models_with_several_classes_are_never_solved_wrongly(block):
    """Against the LP that knows classes; what is not proved is said to be so."""
    proved = 0
    for seed in range(20 * block, 20 * (block + 1)):
        cmdp = multichain(seed)
        truth = average_lp(cmdp, several=True)
        for method in ("auto", "lp"):
            result = ck.solve(cmdp, method)
            if result.status is Status.OPTIMAL:
                proved += 1
                assert truth is not None, (seed, method)
                assert result.objective == pytest.approx(truth, abs=1e-5), (seed, method)
            elif result.status is Status.INFEASIBLE:
                proved += 1
                assert truth is None, (seed, method)
            else:
                assert result.status is Status.SEVERAL_CLASSES, (seed, method, result.status)
    assert proved >= 32  # of 40


# -- degenerate models -----------------------------------------------------------------------------------------------


def paper_with(constraints, reward=1.0, transitions=None):
    paper = ck.problems.paper()
    P = np.asarray(paper.transitions).reshape(20, 10, 20) if transitions is None else transitions
    limits = constraints(np.asarray(paper.constraints[0].values))
    return ck.CMDP(P, reward=reward * paper.objective, constraints=limits, average=True, action_axis=1)


def with_traps():
    P = np.zeros((4, 2, 4))  # 2 absorbs, 3 is never reached
    P[0, 0, 0] = P[0, 1, 1] = P[1, 0, 1] = P[1, 1, 2] = P[2, :, 2] = P[3, :, 0] = 1.0
    cost = np.array([[0.3, 0.5], [0.4, 0.1], [0.2, 0.9], [0.0, 0.0]])
    reward = [[0.1, 0.0], [0.2, 0.0], [0.8, 0.3], [0.0, 0.0]]
    return ck.CMDP(P, reward=reward, constraints=[ck.AtMost(cost, 0.35)], average=True, initial=0, action_axis=1)


def hardly_mixing():
    """Two halves of the paper's instance that a step leaves with probability 1e-4."""
    P = np.asarray(ck.problems.paper().transitions).reshape(20, 10, 20)
    same = (np.arange(20)[:, None] < 10) == (np.arange(20) < 10)
    P = P * np.where(same, 1.0, 1e-4)[:, None, :]
    P /= P.sum(axis=2, keepdims=True)
    return paper_with(lambda g: [ck.AtLeast(g, 0.7)], transitions=P)


def most_utility():
    free = paper_with(lambda g: [])
    return average_lp(free.with_objective(reward=np.asarray(ck.problems.paper().constraints[0].values)))


def rolled(g, i):
    return np.roll(g, i, axis=i % 2)


DEGENERATE = {
    "no constraints": lambda: paper_with(lambda g: []),
    "one state": lambda: ck.CMDP(
        np.ones((1, 3, 1)), reward=[[1.0, 2.0, 3.0]], constraints=[ck.AtMost([[1, 2, 3]], 2.5)], average=True
    ),
    "one action": lambda: ck.CMDP(
        np.ones((3, 1, 3)) / 3, cost=np.ones((3, 1)), constraints=[ck.AtMost(np.ones((3, 1)), 1.0)], average=True
    ),
    "all rows alike": lambda: paper_with(lambda g: [ck.AtLeast(g, 0.9)], transitions=np.full((20, 10, 20), 0.05)),
    "traps": with_traps,
    "duplicated and redundant": lambda: paper_with(
        lambda g: [ck.AtLeast(g, 0.7), ck.AtLeast(g, 0.7), ck.AtLeast(2 * g, 1.4), ck.AtLeast(g, -5), ck.AtMost(g, 1e6)]
    ),
    "equality": lambda: paper_with(lambda g: [ck.AtLeast(g, 0.7), ck.AtMost(g, 0.7)]),
    "no Slater point": lambda: paper_with(lambda g: [ck.AtLeast(g, most_utility())]),
    "almost no Slater point": lambda: paper_with(lambda g: [ck.AtLeast(g, most_utility() - 1e-9)]),
    "constant cost on its limit": lambda: paper_with(lambda g: [ck.AtMost(np.ones_like(g), 1.0)]),
    "zero cost": lambda: paper_with(lambda g: [ck.AtMost(np.zeros_like(g), 0.0)]),
    "zero reward": lambda: paper_with(lambda g: [ck.AtLeast(g, 0.7)], reward=0.0),
    "randomises in several states": lambda: paper_with(lambda g: [ck.AtLeast(rolled(g, i), 0.55) for i in range(4)]),
    "eight constraints": lambda: paper_with(lambda g: [ck.AtLeast(rolled(g, i), 0.52) for i in range(8)]),
    "hardly mixing": hardly_mixing,
    "large costs": lambda: paper_with(lambda g: [ck.AtLeast(1e6 * g, 7e5)], reward=1e6),
    "small costs": lambda: paper_with(lambda g: [ck.AtLeast(1e-6 * g, 7e-7)], reward=1e-6),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_models(name):
    cmdp = DEGENERATE[name]()
    truth, size = average_lp(cmdp), float(np.abs(cmdp.objective).max())
    assert truth is not None
    for method in METHODS if name != "traps" else METHODS[:3]:
        result = ck.solve(cmdp, method)
        assert result.status is Status.OPTIMAL, (method, result.status, result.certificate)
        assert result.objective == pytest.approx(truth, abs=3e-6 * max(size, 1e-300)), method
        assert result.certificate.feasible(1e-6)


@pytest.mark.parametrize("method", METHODS[:3])  # pmd-pd ends with a policy that is within `tol`
def test_a_limit_just_out_of_reach_is_refuted(method):
    result = ck.solve(paper_with(lambda g: [ck.AtLeast(g, most_utility() + 1e-9)]), method)
    assert result.status is Status.INFEASIBLE
    assert 0.0 < result.certificate.infeasibility_margin < 1.1e-9
    assert result.violations[0] < 2e-9
