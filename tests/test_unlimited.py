"""Models without limits: the last backup is the proof, judged in exact arithmetic and against policy iteration."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

import cmdpkit as ck
from cmdpkit.evaluation.system import PolicySystem
from cmdpkit.exact.plain import minimise_alone
from cmdpkit.run.unlimited import SMALL
from rational import Exact


def garnet(states, gamma=0.9, seed=0, sparse=True, reward=False):
    rng = np.random.default_rng(seed)
    actions, successors = 3, min(states, 4)
    columns = np.array([rng.choice(states, successors, replace=False) for _ in range(states * actions)])
    shares = rng.dirichlet(np.ones(successors), size=states * actions)
    P = sp.csr_array(
        (shares.ravel(), columns.ravel(), np.arange(0, shares.size + 1, successors)), shape=(states * actions, states)
    )
    table = rng.normal(size=(states, actions))
    given = {"reward": table} if reward else {"cost": table}
    return ck.CMDP(P if sparse else P.toarray().reshape(states, actions, states), gamma=gamma, **given)


def without_limits(cmdp):
    kind = "reward" if cmdp.maximise else "cost"
    return ck.CMDP(cmdp.transitions, **{kind: cmdp.objective}, gamma=cmdp.gamma, initial=cmdp.initial)


def howard(cmdp):
    """The least value from the start, by policy iteration with dense solves."""
    states, actions = cmdp.states, cmdp.actions
    P = cmdp.transitions.toarray().reshape(states, actions, states)
    cost, choice = cmdp.costs[0].reshape(states, actions), np.zeros(states, dtype=int)
    while True:
        rows = np.arange(states)
        value = np.linalg.solve(np.eye(states) - cmdp.gamma * P[rows, choice], cost[rows, choice])
        q = cost + cmdp.gamma * P @ value
        better = np.where(q.min(axis=1) < q[rows, choice] - 1e-10, q.argmin(axis=1), choice)
        if (better == choice).all():
            return float(cmdp.initial @ value)
        choice = better


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.99, 0.99999])
def test_values_and_bounds_hold_in_exact_arithmetic(seed, gamma):
    cmdp = garnet(4, gamma, seed)
    tol = [1e-2, 1e-6, 1e-9][seed % 3]
    found = minimise_alone(cmdp, tol, lambda: False)
    assert found is not None
    exact = Exact(cmdp)
    own = exact.values([[Fraction(int(a == chosen)) for a in range(cmdp.actions)] for chosen in found.choice])[0]
    assert Fraction(found.bound) <= exact.minimum([1.0])
    assert abs(own - Fraction(found.value)) <= Fraction(found.error)
    assert found.value + found.error - found.bound <= tol * cmdp.proof_scale(found.value)


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("reward", [True, False])
@pytest.mark.parametrize("states", [1, 30, SMALL + 100])
def test_policy_iteration_finds_the_same(states, reward, sparse):
    cmdp = garnet(states, 0.97, states, reward=reward)
    result = ck.solve(garnet(states, 0.97, states, sparse, reward))
    assert result.status is ck.Status.OPTIMAL
    assert cmdp.sense * result.objective == pytest.approx(howard(cmdp), rel=2e-6, abs=2e-6)
    judged = ck.certify(cmdp, result.policy)
    assert abs(judged.objective - result.objective) <= result.certificate.accuracy * max(1, abs(result.objective))
    assert np.isin(result.policy.pi, (0.0, 1.0)).all()


@pytest.mark.parametrize("family", ["grid", "two_queues", "wireless", "inventory", "maintenance"])
def test_every_kind_of_chain_is_proved(family):
    sizes = {"grid": {"rows": 25, "columns": 25, "gamma": 0.999}, "two_queues": {"capacity": 24, "gamma": 0.999}}
    cmdp = without_limits(getattr(ck.problems, family)(**sizes.get(family, {})))
    result = ck.solve(cmdp)
    linear = ck.solve(cmdp, "lp")
    assert result.status is linear.status is ck.Status.OPTIMAL
    assert result.objective == pytest.approx(linear.objective, rel=2e-6, abs=2e-6)


def test_the_tolerance_asked_for_is_where_it_ends(monkeypatch):
    """Sweeps: a loose tolerance takes fewer of them, and no linear system is solved for the certificate."""
    cmdp, evaluated = garnet(3_000, 0.99, 5), []
    sweep = PolicySystem._sweep
    monkeypatch.setattr(PolicySystem, "_sweep", lambda *given: evaluated.append(1) or sweep(*given))
    gaps, counts = [], []
    for tol in (1e-2, 1e-8):
        evaluated.clear()
        gaps.append(ck.solve(cmdp, tol=tol).certificate.gap)
        counts.append(len(evaluated))
    assert 1e-8 < gaps[0] <= 1e-2
    assert gaps[1] <= 1e-8
    assert counts[0] < counts[1]


def test_a_lattice_is_factorised_once_where_the_first_policy_is_the_best(monkeypatch):
    cmdp, factorised = without_limits(ck.problems.two_queues(capacity=39, gamma=0.999)), []
    direct = PolicySystem._direct

    def counted(system):
        if system._factors is None:
            factorised.append(1)
        return direct(system)

    monkeypatch.setattr(PolicySystem, "_direct", counted)
    assert ck.solve(cmdp).status is ck.Status.OPTIMAL
    assert len(factorised) == 1


def test_time_and_callbacks_end_it():
    cmdp = garnet(3_000, 0.99, 5)
    assert ck.solve(cmdp, time_limit=0.0).status is ck.Status.TIME_LIMIT
    assert ck.solve(cmdp, max_iterations=0).status is ck.Status.ITERATION_LIMIT
    seen = []
    ck.solve(cmdp, callback=seen.append)
    assert [news.iteration for news in seen] == [1]


def test_what_rounding_hides_is_left_to_the_others():
    assert minimise_alone(garnet(300, 0.999, 1), 1e-18, lambda: False) is None
