"""Models of long-run averages: bounds and values in exact fractions, systems of every kind, hand-built chains."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linprog

import cmdpkit as ck
from cmdpkit.certificates.checker import values_with_errors
from cmdpkit.evaluation.bounds import local_bound, macqueen_bound
from cmdpkit.evaluation.gains import AverageSystem, policy_system
from cmdpkit.evaluation.system import Plan
from cmdpkit.exact.mdp import minimise
from cmdpkit.run.status import Status
from long_run import admission, average_lp, unichain

# -- bounds and values, in exact fractions ---------------------------------------------------------------------------


class ExactAverages:
    """Averages in exact fractions, of rows divided by their exact sums; every policy comes back to state 0."""

    def __init__(self, cmdp):
        P = cmdp.transitions.toarray() if sp.issparse(cmdp.transitions) else np.asarray(cmdp.transitions)
        rows = [[Fraction(float(x)) for x in row] for row in P]
        self.P = [[x / sum(row) for x in row] for row in rows]
        self.S, self.A = cmdp.states, cmdp.actions
        tables = [cmdp.objective, *(c.values for c in cmdp.constraints)]
        signs = [int(cmdp.sense), *(int(c.sign) for c in cmdp.constraints)]
        self.costs = [[s * Fraction(float(x)) for x in np.ravel(t)] for s, t in zip(signs, tables, strict=True)]
        limits = [int(c.sign) * Fraction(float(c.limit)) for c in cmdp.constraints]
        self.offsets = [Fraction(0), *limits]

    def values(self, probabilities):
        """All averages of a policy, one list of fractions per state; limits not subtracted."""
        S, A, m = self.S, self.A, len(self.costs)
        rows = []
        for s in range(S):  # (I − Q) w = c and (I − Q) t = 1, with Q the chain without its column 0
            chain = [sum(probabilities[s][a] * self.P[s * A + a][t] for a in range(A)) for t in range(S)]
            costs = [sum(probabilities[s][a] * c[s * A + a] for a in range(A)) for c in self.costs]
            rows.append([Fraction(int(s == t)) - (chain[t] if t else 0) for t in range(S)] + costs + [Fraction(1)])
        for i in range(S):
            pivot = rows[i][i]
            rows[i] = [x / pivot for x in rows[i]]
            for j in range(S):
                if j != i and rows[j][i]:
                    rows[j] = [x - rows[j][i] * y for x, y in zip(rows[j], rows[i], strict=True)]
        return [rows[0][S + k] / rows[0][S + m] for k in range(m)]

    def minimum(self, weights):
        choices = product(range(self.A), repeat=self.S)
        one_hot = ([[Fraction(int(a == b)) for b in range(self.A)] for a in choice] for choice in choices)
        w = [Fraction(float(x)) for x in weights]
        return min(sum(x * (v - b) for x, v, b in zip(w, self.values(pi), self.offsets, strict=True)) for pi in one_hot)


def tiny(seed):
    """Two or three states, with rows that do not sum to one exactly, and values of all sizes."""
    rng = np.random.default_rng(seed)
    S, A, m = int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(0, 3))
    P = np.where(rng.random((S, A, S)) < 0.6, rng.random((S, A, S)), 0.0)
    P[:, :, 0] += 10.0 ** -float(rng.integers(0, 5))
    P /= P.sum(axis=2, keepdims=True)
    if seed % 3 == 0:
        P *= 1.0 + rng.uniform(-5e-9, 5e-9, (S, A, 1))
    costs = rng.normal(size=(m + 1, S, A)) * 10.0 ** rng.integers(-3, 4, (m + 1, 1, 1))
    limits = [ck.AtMost(c, float(rng.normal())) for c in costs[1:]]
    return ck.CMDP(P, cost=costs[0], constraints=limits, average=True, initial=0, action_axis=1)


@pytest.mark.parametrize("block", range(8))
def test_bounds_are_valid_for_any_guess_and_weights(block):
    for seed in range(12 * block, 12 * (block + 1)):
        cmdp, rng = tiny(seed), np.random.default_rng(seed)
        exact = ExactAverages(cmdp)
        for weights in (np.append(1.0, np.zeros(cmdp.num_constraints)), rng.exponential(size=cmdp.num_constraints + 1)):
            least = exact.minimum(weights)
            answer = minimise(cmdp, weights)
            assert Fraction(answer.bound) <= least
            system = policy_system(cmdp, choice=answer.choice)
            good = system.state_values(cmdp.costs[:, cmdp.pairs.rows(answer.choice)].T @ weights)
            size = float(np.abs(good).max() + weights @ cmdp.cost_sizes)
            allowed = 1e-12 * size + 2.0 * float(np.abs(np.array(cmdp.row_sums) - 1.0).max()) * size
            assert float(least) - answer.bound <= allowed + 1e-12 * weights[1:] @ np.abs(cmdp.limits)
            guesses = [good + e * size * rng.normal(size=cmdp.states) for e in (0.0, 1e-12, 1e-6, 1.0, 1e3, 1e8)]
            for guess in [*guesses, np.zeros(cmdp.states), good + 1e6 * size, good - 1e6 * size]:
                assert Fraction(macqueen_bound(cmdp, weights, guess)) <= least, seed
                assert Fraction(local_bound(cmdp, weights, guess)) <= least, seed


@pytest.mark.parametrize("block", range(8))
def test_values_of_policies_lie_within_their_errors(block):
    for seed in range(12 * block, 12 * (block + 1)):
        cmdp, rng = tiny(seed), np.random.default_rng(seed)
        exact = ExactAverages(cmdp)
        for concentration in (0.01, 1.0):
            policy = ck.TabularPolicy(rng.dirichlet(np.full(cmdp.actions, concentration), size=cmdp.states))
            stored = [[Fraction(float(p)) for p in row] for row in policy.probabilities]
            truth = exact.values([[p / sum(row) for p in row] for row in stored])
            values, errors = values_with_errors(cmdp, policy)
            for found, error, true in zip(values, errors, truth, strict=True):
                assert abs(Fraction(found) - true) <= Fraction(error), seed
            off = float(np.abs(np.array(cmdp.row_sums) - 1.0).max())
            assert (errors <= (1e-9 + 1e6 * off) * cmdp.cost_sizes).all(), (seed, errors)


def test_a_start_that_can_end_in_two_classes():
    """From state 0 a third of the way leads to state 1, whose average is 6, the rest to the cycle 2, 3 of average 3."""
    P = np.zeros((4, 1, 4))
    P[0, 0, [0, 1, 2]] = [0.25, 0.25, 0.5]
    P[1, 0, 1] = P[2, 0, 3] = P[3, 0, 2] = 1.0
    cmdp = ck.CMDP(P, cost=[[100.0], [6.0], [2.0], [4.0]], average=True, initial=0, action_axis=1)
    policy = ck.TabularPolicy.uniform(4, 1)
    values, errors = values_with_errors(cmdp, policy)
    assert abs(values[0] - 4.0) <= errors[0] <= 1e-12
    found = ck.evaluate(cmdp, policy)
    assert found.objective == pytest.approx(4.0, abs=1e-13)
    np.testing.assert_allclose(found.occupancy.ravel(), [0.0, 1 / 3, 1 / 3, 1 / 3], atol=1e-13)


# -- several parts of a model --------------------------------------------------------------------------------------


def test_parts_that_limits_need_both_of():
    """Two states that a policy may stay in. Half of the time in the first is the best, which no single class has."""
    P = np.zeros((2, 2, 2))
    P[:, 0], P[:, 1] = np.eye(2), np.eye(2)[::-1]  # stay, or change
    fumes = ck.AtMost([[1.0, 1.0], [0.0, 0.0]], 0.5, name="fumes")
    cmdp = ck.CMDP(P, reward=[[1.0, -9.0], [0.0, -9.0]], constraints=[fumes], average=True, initial=1, action_axis=1)
    for method in ("auto", "columns", "lp"):
        result = ck.solve(cmdp, method)
        assert result.status is Status.OPTIMAL, method
        assert result.objective == pytest.approx(0.5, abs=3e-6)


def test_a_model_that_falls_apart_says_where():
    """The start leads to one of two states for good, and the limit needs both: no stationary answer is proved."""
    P = np.zeros((3, 2, 3))
    P[0, :, 1:] = 0.5
    P[1, :, 1] = P[2, :, 2] = 1.0
    limit = ck.AtMost([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]], 0.75, name="noise")
    labels = ["start", "here", "there"]
    cmdp = ck.CMDP(
        P,
        reward=[[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]],
        constraints=[limit],
        average=True,
        initial="start",
        state_labels=labels,
        action_axis=1,
    )
    result = ck.solve(cmdp)
    assert result.status is Status.SEVERAL_CLASSES
    assert "here" in result.message
    assert "there" in result.message


# -- systems of every kind -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dense", "sparse", "krylov", None])
@pytest.mark.parametrize("seed", range(4))
def test_gain_and_bias_by_every_solver(method, seed):
    """g and h solve h = c − g + P h, with ρ h = 0; μ = μ P. Sweeps are tried first where the method is None."""
    rng = np.random.default_rng(seed)
    S = 260
    rows, columns = np.repeat(np.arange(S), 3), rng.integers(S, size=3 * S)
    columns[::3] = (np.arange(S) + 1) % S
    P = sp.csr_array((rng.dirichlet(np.ones(3), size=S).ravel(), (rows, columns)), shape=(S, S))
    cost = rng.normal(size=(S, 2))
    cmdp = ck.CMDP(P, cost=cost[:, :1], constraints=[ck.AtMost(cost[:, 1:], 0.0)], average=True)
    system = AverageSystem(cmdp, choice=np.zeros(S, dtype=int), plan=Plan(method))
    values = system.state_values(cost)
    gain = cmdp.initial @ values
    np.testing.assert_allclose(cost + P @ values - values, np.broadcast_to(gain, cost.shape), atol=1e-10)
    shares = system.state_occupancy()
    np.testing.assert_allclose(shares @ P.toarray(), shares, atol=1e-12)
    np.testing.assert_allclose(shares @ cost, gain, atol=1e-11)
    assert shares.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("period", [2, 3, 7])
def test_periodic_chains_larger_than_a_dense_system(period):
    rng = np.random.default_rng(period)
    S, A = 210, 3
    layer = np.arange(S) % period
    P = np.zeros((S, A, S))
    for s, a in product(range(S), range(A)):
        ahead = np.flatnonzero(layer == (layer[s] + 1) % period)
        P[s, a, rng.choice(ahead, 4, replace=False)] = rng.dirichlet(np.ones(4))
        P[s, a] = 0.95 * P[s, a]
        P[s, a, ahead[0]] += 0.05
    matrix = sp.csr_array(P.reshape(S * A, S))
    costs = rng.random((2, S, A))
    limit = ck.AtMost(costs[1], 0.35)
    cmdp = ck.CMDP(matrix, reward=costs[0], constraints=[limit], average=True, initial=0)
    truth = average_lp(cmdp)
    for method in ("auto", "pmd-pd"):
        result = ck.solve(cmdp, method)
        assert result.status is Status.OPTIMAL
        assert result.objective == pytest.approx(truth, abs=3e-6)


def test_a_state_that_is_seldom_visited_does_not_mark_the_cycles():
    """All states lead to state 0, which is left for state 1 after 100 steps; state 1 is left after 1e12."""
    P = np.zeros((50, 1, 50))
    P[2:, 0, 0] = 1.0
    P[0, 0, [0, 1]] = [0.99, 0.01]
    P[1, 0, [1, 2]] = [1.0 - 1e-12, 1e-12]
    cost = np.random.default_rng(0).normal(size=(50, 1))
    cmdp = ck.CMDP(P, cost=cost, average=True, initial=1, action_axis=1)
    system = AverageSystem(cmdp, choice=np.zeros(50, dtype=int))
    assert system.times[1] == pytest.approx(1.0)  # from one visit to state 1 to the next; 1e12 between those to state 0
    values = system.state_values(cost[:, 0])
    assert values[1] == pytest.approx(cost[1, 0], rel=1e-9)  # the average, with h(1) = 0
    assert values[0] - values[1] == pytest.approx(100.0 * (cost[0, 0] - values[1]), rel=1e-12)


def test_a_queue_that_is_hardly_ever_full():
    """Cycles from full to full take 1e36 steps, yet values keep their digits."""
    cmdp = admission(60, 0.15, 0.6, 100.0)
    system = AverageSystem(cmdp, choice=np.ones(61, dtype=int))
    values = system.state_values(cmdp.pairs.expect(cmdp.pairs.one_hot(np.ones(61, dtype=int)), cmdp.costs))
    ratio = 0.25
    weights = ratio ** np.arange(61)
    weights /= weights.sum()
    assert -(cmdp.initial @ values)[0] == pytest.approx(0.6 * (1.0 - weights[0]), rel=1e-12)
    assert (cmdp.initial @ values)[1] == pytest.approx(weights @ np.arange(61), rel=1e-11)


# -- the rest of the package -----------------------------------------------------------------------------------------


def test_values_and_advantages_fit_together():
    cmdp = unichain(7)
    policy = ck.TabularPolicy.uniform(cmdp.states, cmdp.actions)
    found = ck.evaluate(cmdp, policy)
    mean = (policy.probabilities * found.action_values).sum(axis=2)
    np.testing.assert_allclose(mean, found.state_values, atol=1e-12)  # V = Σ_a π Q
    np.testing.assert_allclose(found.state_values @ cmdp.initial, [found.objective, *found.constraint_values])
    assert found.occupancy.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("seed", [9, 14, 17, 20, 29])
def test_slater_margin_and_certify(seed):
    """max_π min_i slack_i by an LP of its own; certificates with the best prices and with given ones."""
    cmdp = unichain(seed)
    assert cmdp.num_constraints
    P = cmdp.transitions.toarray() if sp.issparse(cmdp.transitions) else np.asarray(cmdp.transitions)
    n, S = P.shape
    leave = np.zeros((S, n))
    leave[cmdp.pairs.state, np.arange(n)] = 1.0
    A_eq = np.block([[leave - P.T, np.zeros((S, 1))], [np.ones((1, n)), np.zeros((1, 1))]])
    rows = [np.append(c.sign * np.ravel(c.values), 1.0) for c in cmdp.constraints]
    limits = [c.sign * c.limit for c in cmdp.constraints]
    bounds = [(0, None)] * n + [(None, None)]
    found = linprog(np.append(np.zeros(n), -1.0), np.array(rows), limits, A_eq, np.append(np.zeros(S), 1.0), bounds)
    size = max(float(np.abs(np.asarray(c.values)).max()) for c in cmdp.constraints)
    assert ck.slater_margin(cmdp) == pytest.approx(-found.fun, abs=1e-8 * max(1.0, size))
    certificate = ck.certify(cmdp, cmdp.pairs.table(cmdp.pairs.uniform(), 0.0))
    if found.fun > 1e-9:
        assert certificate.infeasibility is not None
    else:
        truth = average_lp(cmdp)
        assert certificate.bound == pytest.approx(truth, abs=1e-7 * max(1.0, abs(truth)))


def test_another_criterion_for_the_same_model():
    discounted = ck.problems.maintenance()
    averages, built = discounted.with_criterion(average=True), ck.problems.maintenance(average=True)
    result = ck.solve(averages)
    assert result.status is Status.OPTIMAL
    assert result.objective == ck.solve(built).objective == pytest.approx(average_lp(built), abs=1e-6)
    back = averages.with_criterion(gamma=0.99)
    np.testing.assert_array_equal(back.costs, discounted.costs)
    with pytest.raises(ValueError, match="leave out gamma"):
        ck.problems.maintenance(gamma=0.9, average=True)


@pytest.mark.parametrize("name", ["wireless", "two_queues", "inventory"])
def test_built_in_problems_with_averages(name):
    size = {"capacity": 5} if name == "two_queues" else {}
    cmdp = getattr(ck.problems, name)(average=True, **size)
    result = ck.solve(cmdp)
    assert result.status is Status.OPTIMAL
    assert result.objective == pytest.approx(average_lp(cmdp), abs=1e-5)
    np.testing.assert_allclose(ck.long_run_averages(cmdp, result.policy)[1], result.constraint_values, atol=1e-9)


def test_files_and_words(tmp_path):
    cmdp = admission(5, 0.3, 0.4, 1.0)
    assert repr(cmdp) == "CMDP(states=6, actions=2, constraints=['length'], average=True)"
    cmdp.save(tmp_path / "queue.npz")
    again = ck.CMDP.load(tmp_path / "queue.npz")
    assert again.criterion == "average"
    result = ck.solve(again)
    assert result.objective == ck.solve(cmdp).objective
    assert "long-run average" in str(result)
    assert "discounted" not in str(result)
    result.save(tmp_path / "result.npz")
    assert "long-run average" in str(ck.Result.load(tmp_path / "result.npz"))
    tight = cmdp.with_limits(length=0.5)
    assert tight.criterion == "average"
    assert ck.solve(tight).constraint_values[0] == pytest.approx(0.5, abs=1e-6)


def test_a_limit_per_step_is_the_limit():
    """An average is per step by itself."""
    cmdp = admission(5, 0.3, 0.4, 1.0)
    length = ck.AtMost(cmdp.constraints[0].values, 1.0, name="length", per_step=True)
    same = ck.CMDP(
        cmdp.transitions.reshape(6, 2, 6),
        reward=cmdp.objective,
        constraints=[length],
        average=True,
        initial=5,
        action_axis=1,
    )
    assert ck.solve(same).objective == ck.solve(cmdp).objective


def test_what_is_refused():
    P, cost = np.ones((1, 2, 1)), [[0.0, 1.0]]
    with pytest.raises(ValueError, match=r"leave out gamma=0\.9, or average=True"):
        ck.CMDP(P, cost=cost, gamma=0.9, average=True)
    with pytest.raises(TypeError, match="average=True for long-run averages"):
        ck.CMDP(P, cost=cost)
    with pytest.raises(TypeError, match="average must be True or False, not 1"):
        ck.CMDP(P, cost=cost, average=1)
    cmdp = admission(5, 0.3, 0.4, 1.0)
    with pytest.raises(ValueError, match=r"schedule='theory'.*knows discounted models only"):
        ck.solve(cmdp, "pmd-pd", schedule="theory", max_iterations=10)


@pytest.mark.parametrize(("seed", "index"), [(2, 2), (2, 12), (6, 1)])
def test_slater_margins_that_no_stationary_policy_proves(seed, index):
    """Several classes; a mixture of classes; parts that are hardly ever left, where rounding hides the sign."""
    from fuzz.judge import Judge
    from fuzz.models import FAMILIES

    cmdp = FAMILIES["average"](np.random.default_rng([seed, index]))
    assert Judge(cmdp).slater(ck.slater_margin(cmdp)) == []
