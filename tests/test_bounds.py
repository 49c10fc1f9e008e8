"""Every bound against exact rational arithmetic: poor guesses, rows that do not sum to one, extreme discounts."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

import cmdpkit as ck
from cmdpkit.certificates.checker import values_with_errors
from cmdpkit.evaluation.bounds import (
    backup_errors,
    down,
    horizon_bound,
    local_bound,
    macqueen_bound,
    row_sum_range,
    tail,
    up,
)
from cmdpkit.exact.mdp import minimise, polished_bound
from rational import Exact

GAMMAS = (0.0, 0.3, 0.9, 0.99, 0.999, 0.9999, 0.99999)


def nasty(seed):
    """A model of one to three states, with numbers that are awkward in floating point."""
    rng = np.random.default_rng(seed)
    S, A, m = int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(0, 4))
    kind = seed % 5
    P = rng.dirichlet(np.full(S, 0.5), size=(S, A))
    if kind == 1:  # deterministic
        P = np.eye(S)[rng.integers(S, size=(S, A))]
    elif kind == 2:  # decimal fractions whose sums are rounded
        P = np.round(P, 2)
        P[..., -1] = 1.0 - P[..., :-1].sum(axis=-1)
        P = np.abs(P)
        P /= P.sum(axis=-1, keepdims=True)
    elif kind == 3:  # rows off by as much as is allowed
        P *= 1.0 + rng.uniform(-9e-9, 9e-9, size=(S, A, 1))
    gamma = float(rng.choice(GAMMAS))
    if gamma * P.sum(axis=-1).max() >= 1.0:
        P /= P.sum(axis=-1, keepdims=True)
    sizes = 10.0 ** rng.integers(-8, 9, size=m + 1)
    tables = rng.uniform(-1.0, 1.0, size=(m + 1, S, A)) * sizes[:, None, None] + sizes[:, None, None] * rng.integers(
        0, 3
    )
    limits = []
    for i in range(m):
        kind_of_limit = ck.AtMost if rng.random() < 0.5 else ck.AtLeast
        value = float(tables[i + 1].mean()) * (1.0 if (per_step := bool(rng.random() < 0.4)) else 1.0 / (1.0 - gamma))
        limits.append(kind_of_limit(tables[i + 1], value * float(rng.uniform(0.9, 1.1)), per_step=per_step))
    initial = rng.dirichlet(np.ones(S))
    transitions = sp.csr_array(P.reshape(S * A, S)) if kind == 4 else P
    objective = {"reward" if rng.random() < 0.5 else "cost": tables[0]}
    return ck.CMDP(transitions, constraints=limits, gamma=gamma, initial=initial, **objective)


def guesses(cmdp, weights, rng):
    """The values of a good policy, and worse and worse ones."""
    oracle = minimise(cmdp, weights)
    system = ck.evaluate(cmdp, np.eye(cmdp.actions)[oracle.choice])
    signs = np.concatenate([[cmdp.sense], cmdp.signs])[:, None]
    good = weights @ (signs * system.state_values)
    size = np.abs(good).max() + 1.0
    yield good
    for error in (1e-12, 1e-6, 1.0, 1e3, 1e8):
        yield good + error * size * rng.normal(size=cmdp.states)
    yield np.zeros(cmdp.states)
    yield good + 1e6 * size
    yield good - 1e6 * size


@pytest.mark.parametrize("block", range(20))
def test_dual_bounds_are_valid_for_any_guess_and_weights(block):
    """At most the exact minimum over all policies, and near it for a good guess."""
    for seed in range(15 * block, 15 * (block + 1)):
        cmdp, rng = nasty(seed), np.random.default_rng(seed)
        exact = Exact(cmdp)
        for weights in (np.append(1.0, np.zeros(cmdp.num_constraints)), rng.exponential(size=cmdp.num_constraints + 1)):
            least = exact.minimum(weights)
            for k, guess in enumerate(guesses(cmdp, weights, rng)):
                for bound in (macqueen_bound, local_bound):
                    found = bound(cmdp, weights, guess)
                    assert Fraction(found) <= least, (seed, k, bound.__name__, found - float(least))
                    if k == 0:
                        size = float(
                            np.abs(weights) @ (cmdp.cost_sizes / (1 - cmdp.gamma) + np.append(0.0, np.abs(cmdp.limits)))
                        )
                        assert float(least) - found <= 1e-10 * size / (1.0 - cmdp.gamma)
            assert Fraction(minimise(cmdp, weights).bound) <= least


@pytest.mark.parametrize("block", range(15))
def test_values_of_policies_lie_within_their_errors(block):
    """The policy as it is played, with probabilities that sum to one exactly; stationary ones and mixtures."""
    for seed in range(15 * block, 15 * (block + 1)):
        cmdp, rng = nasty(seed), np.random.default_rng(seed)
        exact = Exact(cmdp)
        S, A = cmdp.states, cmdp.actions
        policies = [ck.TabularPolicy(rng.dirichlet(np.full(A, 0.3), size=S)) for _ in range(3)]
        policies.append(ck.TabularPolicy.deterministic(rng.integers(A, size=S), A))
        truths = [exact.values(exact.normalised(policy)) for policy in policies]
        for policy, truth in zip(policies, truths, strict=True):
            assert_within(cmdp, policy, truth)
        mixture = ck.MixturePolicy(policies, rng.dirichlet(np.ones(4)))
        weights = [Fraction(float(w)) for w in mixture.weights]
        weights = [w / sum(weights) for w in weights]
        mixed = [sum(w * t[i] for w, t in zip(weights, truths, strict=True)) for i in range(len(truths[0]))]
        assert_within(cmdp, mixture, mixed)
        certificate = ck.certify(cmdp, mixture)
        assert_certificate(cmdp, exact, certificate, mixed)


def assert_within(cmdp, policy, truth):
    values, errors = values_with_errors(cmdp, policy)
    offsets = [Fraction(0)] + [Fraction(float(b)) for b in cmdp.offsets]
    for i, (value, error, exact, offset) in enumerate(zip(values, errors, truth, offsets, strict=True)):
        assert abs(Fraction(float(value)) - (exact + offset)) <= Fraction(float(error)), i
        size = cmdp.cost_sizes[i] / (1.0 - cmdp.gamma)
        assert error <= 1e-11 * size / (1.0 - cmdp.gamma) + 1e-7 * size * (cmdp.row_sums[0] < 1.0 - 1e-12)


def assert_certificate(cmdp, exact, certificate, truth):
    """Gap and violation are at least what exact arithmetic says."""
    sense = -1 if cmdp.maximise else 1
    if certificate.infeasibility is not None:
        least = exact.minimum(np.append(0.0, certificate.infeasibility))
        assert least >= Fraction(certificate.infeasibility_margin) > 0
        return
    bound = sense * Fraction(certificate.bound)
    assert exact.minimum(np.append(1.0, certificate.multipliers)) >= bound
    size = max(Fraction(1), abs(Fraction(certificate.objective)))
    assert abs(truth[0] - bound) <= Fraction(certificate.gap) * size * (1 + Fraction(1, 10**12))
    for i, limit in enumerate(cmdp.constraints, start=1):
        scale = max(Fraction(1), abs(Fraction(limit.limit)))
        assert truth[i] <= Fraction(certificate.violation) * scale * (1 + Fraction(1, 10**12))


@pytest.mark.parametrize("gamma", [0.99999, 0.99, 0.5])
def test_a_limit_at_the_edge_of_what_is_possible_is_not_refuted(gamma):
    """Row sums are rounded, and the error is multiplied by 1/(1 − γ): a limit just below the exact attainable value."""
    row = [0.1, 0.34, 0.56]
    P = np.array([[row, row]] * 3)
    cost = np.array([[0.0, 1.0]] * 3)
    exact = Exact(ck.CMDP(P, reward=cost, gamma=gamma))
    best = -exact.minimum([1.0])  # always the second action
    limit = float(best)
    while Fraction(limit) > best:
        limit = down(limit)
    cmdp = ck.CMDP(P, cost=cost, constraints=[ck.AtLeast(cost, limit)], gamma=gamma)
    for method in ("auto", "columns", "lp", "pmd-pd"):
        result = ck.solve(cmdp, method, max_iterations=200)
        assert result.certificate.infeasibility is None, method
    always = ck.TabularPolicy([[0.0, 1.0]] * 3)
    assert ck.certify(cmdp, always).infeasibility is None


def test_farkas_margins_are_those_of_the_vector_that_is_reported():
    """Three limits in units 1e-6, 1 and 1e6 that conflict: the margin holds for the reported weights, exactly."""
    rng = np.random.default_rng(0)
    for seed in range(20):
        S, A = 2, 2
        P = rng.dirichlet(np.ones(S), size=(S, A))
        use = rng.uniform(0.2, 1.0, size=(S, A))
        limits = [
            ck.AtMost(1e-6 * use, 0.3e-6, name="small"),
            ck.AtLeast(1e6 * use, 3.9e6, name="large"),
            ck.AtMost(rng.random((S, A)), 5.0, name="slack"),
        ]
        cmdp = ck.CMDP(P, reward=rng.random((S, A)), constraints=limits, gamma=0.8)
        for method in ("auto", "columns", "lp"):
            certificate = ck.solve(cmdp, method).certificate
            assert certificate.infeasibility is not None, (seed, method)
            least = Exact(cmdp).minimum(np.append(0.0, certificate.infeasibility))
            assert least >= Fraction(certificate.infeasibility_margin) > 0


def test_values_near_large_limits_keep_their_digits():
    """A value is not computed as (V − limit) + limit."""
    cost = np.array([[2.0 / 9.0, 0.0]])
    for limit in (1.0, 1e12):
        cmdp = ck.CMDP(np.ones((1, 2, 1)), reward=[[1.0, 0.0]], constraints=[ck.AtMost(cost, limit)], gamma=2.0 / 3.0)
        assert ck.solve(cmdp).constraint_values[0] == pytest.approx(2.0 / 3.0, rel=1e-14)


@pytest.mark.parametrize("method", ["pmd-pd", "npg-pd"])
def test_histories_near_large_limits_keep_their_digits(method):
    """The limit is slack in both models, so that the runs are the same: 1e12 has no digits below 1e-4."""
    cost, told = np.array([[2.0 / 9.0, 0.0]]), []
    histories = []
    for limit in (1.0, 1e12):
        cmdp = ck.CMDP(np.ones((1, 2, 1)), reward=[[1.0, 0.0]], constraints=[ck.AtMost(cost, limit)], gamma=2.0 / 3.0)
        result = ck.solve(cmdp, method, tol=0.0, max_iterations=6, callback=told.append)
        histories.append(result.history)
    for name in ("constraint_values", "average_constraint_values"):
        assert np.ptp(histories[0][name]) > 1e-6
        np.testing.assert_allclose(histories[1][name], histories[0][name], rtol=1e-14)
    np.testing.assert_array_equal([news.constraint_values for news in told[6:]], histories[1]["constraint_values"])


def test_row_sums_are_widened_by_their_error():
    """Two thousand terms: the sum is off by more than three last places, and the range knows it."""
    row = np.append(0.5, np.full(1_999, 0.5 / 1_999))
    cmdp = ck.CMDP(np.tile(row, (2_000, 1, 1)), cost=np.zeros((2_000, 1)), gamma=0.9)
    low, high = row_sum_range(cmdp)
    exact = sum(map(Fraction, row))
    assert abs(exact - Fraction(cmdp.row_sums[1])) > Fraction(3 * 2.0**-52)  # widening by two last places would not do
    assert Fraction(low) <= exact <= Fraction(high)


def test_what_a_backup_is_missing_by_hand():
    """One state, c = 1, γ = 1/2: TV = 1 + V/2 is below V = 3 by 1/2, and above V = 1."""
    cmdp = ck.CMDP(np.ones((1, 1, 1)), cost=[[1.0]], gamma=0.5)
    for value, missing in ((3.0, 0.5), (1.0, 0.0)):
        found, rounding = backup_errors(cmdp, np.ones(1), np.array([value]))
        assert found[0] == missing
        assert 2e-16 < rounding[0] < 1e-13


def test_a_long_line_with_large_values_is_proved():
    """Values that fall by orders of magnitude along a line: each state pays for its own rounding only."""
    S, gamma = 400, 0.999
    P = sp.csr_array((np.ones(S), (np.arange(S), np.minimum(np.arange(S) + 1, S - 1))), shape=(S, S))
    cost = np.zeros((S, 1))
    cost[0, 0], cost[-1, 0] = 1.0, 1e9
    cmdp = ck.CMDP(P, cost=cost, constraints=[ck.AtMost(np.ones((S, 1)), 2_000.0)], gamma=gamma, initial=0)
    weights = np.array([1.0, 0.0])
    truth = 1.0 + gamma ** (S - 1) * 1e9 / (1.0 - gamma)
    plain, polished = minimise(cmdp, weights).bound, polished_bound(cmdp, weights)
    assert plain <= polished <= truth * (1.0 + 1e-12)
    assert truth - polished <= 1e-9 * truth
    assert ck.solve(cmdp).status is ck.Status.OPTIMAL


def test_scalars_are_rounded_outwards():
    assert down(1.0) < 1.0 < up(1.0)
    cmdp = ck.CMDP(np.array([[[0.1, 0.9]], [[0.3, 0.7]]]), cost=[[1.0], [1.0]], gamma=0.9)
    low, high = row_sum_range(cmdp)
    sums = [Fraction(0.1) + Fraction(0.9), Fraction(0.3) + Fraction(0.7)]
    assert Fraction(low) <= min(sums) <= max(sums) <= Fraction(high)
    assert high - low <= 1e-14
    g = Fraction(0.9) * max(sums)
    assert Fraction(horizon_bound(cmdp)) >= 1 / (1 - g)
    assert horizon_bound(cmdp) == pytest.approx(10.0, rel=1e-12)
    for d in (1.0, -1.0, 1e-300, -1e300, 0.0):
        worst = min(Fraction(d) * Fraction(0.9) * s / (1 - Fraction(0.9) * s) for s in (min(sums), max(sums)))
        assert Fraction(tail(cmdp, d)) <= worst
        assert tail(cmdp, d) == pytest.approx(9.0 * d, rel=1e-12)
    assert tail(cmdp, -np.inf) == -np.inf
