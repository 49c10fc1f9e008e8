"""Long-run averages of policies, against hand-computed chains and powers of the chain."""

import numpy as np
import pytest
import scipy.sparse as sp

import cmdpkit as ck
from cmdpkit.evaluation.average import long_run_distribution, stationary
from cmdpkit.evaluation.gains import policy_system
from cmdpkit.evaluation.system import Plan


def by_powers(P, initial):
    """The lazy chain (P + I)/2 has the same long-run distribution, and is not periodic."""
    return initial @ np.linalg.matrix_power((P + np.eye(len(P))) / 2, 2**20)


@pytest.mark.parametrize("seed", range(30))
def test_chains_of_every_kind(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 8))
    kinds = [
        lambda: rng.dirichlet(np.full(n, 0.5), size=n),
        lambda: np.eye(n)[rng.integers(n, size=n)],  # deterministic: periodic, several classes
        lambda: np.eye(n)[rng.permutation(n)],
        lambda: _sparse_rows(rng, n),
    ]
    P, initial = kinds[seed % 4](), rng.dirichlet(np.ones(n))
    found = long_run_distribution(P if seed % 3 else sp.csr_array(P), initial)
    np.testing.assert_allclose(found, by_powers(P, initial), atol=1e-8)
    np.testing.assert_allclose(found @ P, found, atol=1e-12)
    assert found.sum() == pytest.approx(1.0, abs=1e-12)


def _sparse_rows(rng, n):
    P = np.where(rng.random((n, n)) < 0.4, rng.random((n, n)), 0.0)
    P[P.sum(axis=1) == 0.0, 0] = 1.0
    return P / P.sum(axis=1, keepdims=True)


def test_a_frequent_state_of_the_last_chain_may_be_left_for_good():
    """The first policy stays in state 2, the second in states 0 and 1, half of the time each."""
    moves = np.zeros((3, 2, 3))
    moves[:, 0, 2] = 1.0
    moves[[0, 1, 2], 1, [1, 0, 0]] = 1.0
    costs = np.array([[1.0, 1.0], [3.0, 3.0], [5.0, 5.0]])
    cmdp = ck.CMDP(moves, cost=costs, average=True)
    plan = Plan("dense")
    for choice, mean in ((0, 5.0), (1, 2.0), (0, 5.0)):
        played = np.full(3, choice)
        system = policy_system(cmdp, choice=played, plan=plan)
        values = system.state_values(cmdp.costs[:, cmdp.pairs.rows(played)].T)
        assert cmdp.initial @ values == pytest.approx([mean])
        assert plan.frequent == (2 if choice == 0 else 0)


def test_two_classes_by_hand():
    """From state 0 half of the way leads to state 1, which stays, and half to the cycle 2, 3."""
    P = np.array([[0.0, 0.5, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]])
    np.testing.assert_allclose(long_run_distribution(P, np.array([1.0, 0, 0, 0])), [0.0, 0.5, 0.25, 0.25])
    np.testing.assert_allclose(long_run_distribution(P, np.array([0.0, 0, 1.0, 0])), [0.0, 0.0, 0.5, 0.5])


def test_a_queue_in_closed_form():
    """Births with probability p and deaths with q: μ(n) ∝ (p/q)ⁿ."""
    p, q, n = 0.2, 0.3, 400
    P = sp.diags_array([np.full(n - 1, q), np.full(n, 1 - p - q), np.full(n - 1, p)], offsets=[-1, 0, 1]).toarray()
    P[0, 0] += q
    P[-1, -1] += p
    expected = (p / q) ** np.arange(n)
    np.testing.assert_allclose(stationary(sp.csr_array(P)), expected / expected.sum(), atol=1e-15)


@pytest.mark.parametrize("rare", [1e-3, 1e-18, 1e-40])
def test_states_that_are_hardly_ever_left(rare):
    """Balance between two states: μ(1)/μ(0) = P(0, 1)/P(1, 0), whatever the sizes; and the way to one of two ends."""
    P = np.array([[1.0, rare, 0.0], [0.5 * rare, 1.0, 0.0], [0.3, 0.0, 0.7]])
    np.testing.assert_allclose(long_run_distribution(P, np.array([0.0, 0.0, 1.0])), [1 / 3, 2 / 3, 0.0], rtol=1e-12)
    P = np.array([[1.0, rare, 3.0 * rare], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(long_run_distribution(P, np.array([1.0, 0.0, 0.0])), [0.0, 0.25, 0.75], rtol=1e-12)


@pytest.mark.parametrize("rare", [1e-3, 1e-8, 1e-12, 1e-14, 1e-18, 1e-100, 1e-300])
def test_evaluations_that_hinge_on_rare_moves(rare):
    """Balance between two states, the way to one of two ends, and a start that is left in the end."""
    even = ck.TabularPolicy.uniform(3, 1)
    for P, start, expected in (
        ([[0.0, rare, 0.0], [0.5 * rare, 0.0, 0.0], [0.3, 0.0, 0.0]], 2, [1 / 3, 2 / 3, 0.0]),
        ([[0.0, rare, 3.0 * rare], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], 0, [0.0, 0.25, 0.75]),
        ([[0.0, rare, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], 0, [0.0, 1.0, 0.0]),
    ):
        table = np.array(P) + np.diag(1.0 - np.sum(P, axis=1))
        reward = [[0.0], [1.0], [0.0]]
        model = ck.CMDP(table[:, None, :], action_axis=1, reward=reward, average=True, initial=start)
        found = ck.evaluate(model, even)
        np.testing.assert_allclose(found.occupancy[:, 0], expected, rtol=1e-11, atol=0.0)
        assert found.objective == pytest.approx(expected[1], rel=1e-11)


def test_birth_and_death_that_hinge_on_rare_moves_of_the_policy():
    """μ(s + 1)/μ(s) = up(s)/down(s + 1), where the policy moves up and down with probabilities from 1e-15 to 1."""
    rng = np.random.default_rng(4)
    for states in (2, 5, 40):
        up, down = 10.0 ** rng.uniform(-15.0, -0.4, (2, states))
        up[-1] = down[0] = 0.0
        P = np.zeros((states, 3, states))
        for s in range(states):
            P[s, 0, s] = P[s, 1, min(s + 1, states - 1)] = P[s, 2, max(s - 1, 0)] = 1.0
        ratios = np.cumsum(np.append(0.0, np.log(up[:-1]) - np.log(down[1:])))
        expected = np.exp(ratios - ratios.max())
        expected /= expected.sum()
        reward = rng.uniform(1.0, 2.0, (states, 1)) * np.ones((1, 3))
        model = ck.CMDP(P, reward=reward, average=True, action_axis=1, initial=0)
        found = ck.evaluate(model, np.stack([1.0 - up - down, up, down], axis=1))
        np.testing.assert_allclose(found.occupancy.sum(axis=1), expected, rtol=1e-10)
        assert found.objective == pytest.approx(expected @ reward[:, 0], rel=1e-10)


def test_averages_that_are_lost_in_rounding_are_refused():
    """A large model whose two halves are joined by moves that rounding hides, and a small one where they underflow."""
    states = 1_200
    P = sp.lil_array((states, states))
    for s in range(states):
        P[s, (s + 1) % 600 + 600 * (s >= 600)] = 1.0
    P[0, 900] = 1e-20
    model = ck.CMDP(sp.csr_array(P), reward=np.ones((states, 1)), average=True, initial=0)
    with pytest.raises(ArithmeticError, match="lost in rounding"):
        ck.evaluate(model, ck.TabularPolicy.uniform(states, 1))
    P = np.array([[1.0, 1e-200, 0.0], [1.0, 1e-200, 1e-200], [0.0, 0.0, 1.0]])[:, None, :]
    small = ck.CMDP(P, reward=[[0.0], [0.0], [1.0]], average=True, initial=0)
    with pytest.raises(ArithmeticError, match="lost in rounding"):
        ck.evaluate(small, ck.TabularPolicy.uniform(3, 1))


def test_averages_of_a_policy_and_of_a_mixture():
    """A machine that is run (reward 1, breaks with 0.1) and repaired: broken one step in eleven."""
    P = np.array([[[0.9, 0.1]], [[1.0, 0.0]]])
    broken = ck.AtMost([[0.0], [1.0]], 0.5, per_step=True)
    model = ck.CMDP(P, reward=[[1.0], [0.0]], constraints=[broken], gamma=0.5, initial=0)
    policy = ck.TabularPolicy.uniform(2, 1)
    for one in (policy, ck.MixturePolicy([policy, policy], [0.3, 0.7])):
        objective, values = ck.long_run_averages(model, one)
        assert objective == pytest.approx(10 / 11)
        np.testing.assert_allclose(values, [1 / 11])
    assert ck.evaluate(model, policy).constraint_values[0] < 1 / 11 - 0.04  # the discount counts the good start more


def test_a_chain_that_lists_successors_twice():
    entries = ([0.5, 0.25, 0.25, 0.5, 0.5], [0, 1, 1, 0, 0], [0, 3, 5])
    np.testing.assert_allclose(long_run_distribution(sp.csr_array(entries), np.array([1.0, 0.0])), [2 / 3, 1 / 3])


def test_a_certificate_knows_that_a_start_is_left_in_the_end():
    """With probability 1e-20 a step: rounding makes the start a class of its own, the graph says that it is none."""
    P = np.array([[[0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])
    limits = [ck.AtMost([[0.0, 1.0], [0.25, 0.25]], 2.0)]
    cmdp = ck.CMDP(P, action_axis=1, cost=np.zeros((2, 2)), constraints=limits, average=True, initial=[0.5, 0.5])
    policy = ck.TabularPolicy.from_log([[np.log(1e-20), 0.0], [0.0, 0.0]])
    certificate = ck.certify(cmdp, policy)
    assert certificate.constraint_values[0] == pytest.approx(0.25, abs=1e-12)
    assert certificate.accuracy <= 1e-12
