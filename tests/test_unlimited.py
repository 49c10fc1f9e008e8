"""Models without limits: the last backup is the proof, judged in exact arithmetic and against policy iteration."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

import cmdpkit as ck
from cmdpkit.evaluation.system import PolicySystem
from cmdpkit.exact import plain
from cmdpkit.exact.plain import leads_to_ends, minimise_alone
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


def maze(side, goals, walls=0.0, slip=0.2):
    rng = np.random.default_rng(side)
    cells = np.where(rng.random((side, side)) < walls, "#", ".")
    cells[0, 1] = "S"
    for goal in goals:
        cells[goal] = "G"
    layout = "\n".join("".join(row) for row in cells)
    return without_limits(ck.problems.grid(slip=slip, gamma=0.999, layout=layout))


def shuffled(cmdp, seed=0):
    """The same model with its states in another order."""
    order = np.random.default_rng(seed).permutation(cmdp.states)
    pairs = (order[:, None] * cmdp.actions + np.arange(cmdp.actions)).ravel()
    initial = cmdp.initial[order]
    return ck.CMDP(cmdp.transitions[pairs][:, order], reward=cmdp.objective[order], gamma=cmdp.gamma, initial=initial)


@pytest.mark.parametrize(
    ("goals", "walls", "slip"),
    [
        ([(59, 59)], 0.0, 0.1),
        ([(0, 0)], 0.0, 0.7),
        ([(30, 30)], 0.25, 0.2),
        ([(5, 50), (50, 5)], 0.2, 0.9),
        ([(59, 0)], 0.0, 1.0),
    ],
)
def test_sweeps_from_the_ends_are_proved(goals, walls, slip):
    cmdp, tol = maze(60, goals, walls, slip), 1e-8
    assert leads_to_ends(cmdp)
    found = minimise_alone(cmdp, tol, lambda: False)
    assert found.value + found.error - found.bound <= tol * cmdp.proof_scale(found.value)
    # The prover, which solves the policy's own system and asks the oracle, agrees
    certificate = ck.certify(cmdp, ck.TabularPolicy(np.eye(cmdp.actions)[found.choice]))
    assert certificate.optimal(2.0 * tol)
    assert abs(cmdp.sense * certificate.objective - found.value) <= found.error + certificate.accuracy
    assert found.bound <= cmdp.sense * certificate.objective + certificate.accuracy


def test_sweeps_from_the_ends_are_given_up_for_factorisations(monkeypatch):
    cmdp, factorised = maze(60, [(30, 30)]), []
    direct = PolicySystem._direct
    monkeypatch.setattr(PolicySystem, "_direct", lambda system: factorised.append(1) or direct(system))
    assert ck.solve(cmdp).status is ck.Status.OPTIMAL
    assert not factorised
    monkeypatch.setattr(plain, "MOST_PASSES", 2)
    assert ck.solve(cmdp).status is ck.Status.OPTIMAL
    assert factorised


def test_ends_are_seen_where_states_are_numbered_along_the_way():
    grid = maze(30, [(29, 29)])
    assert leads_to_ends(grid)
    assert not leads_to_ends(shuffled(grid))
    assert not leads_to_ends(without_limits(ck.problems.two_queues(capacity=29, gamma=0.999)))
    assert ck.solve(shuffled(grid)).objective == pytest.approx(ck.solve(grid).objective, abs=2e-6)


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
    assert minimise_alone(maze(60, [(59, 59)]), 1e-18, lambda: False) is None
