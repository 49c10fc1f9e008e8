"""Evaluation against independent truths: power series, exact fractions, chains worked by hand, flow balance."""

from __future__ import annotations

import itertools
import math
import pickle
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
import scipy.linalg.lapack
import scipy.sparse as sp
import scipy.sparse.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

import cmdpkit as ck
from cmdpkit.evaluation import PolicySystem, backup, sweeps, system
from cmdpkit.evaluation import threads as threads_of
from cmdpkit.evaluation.chain import _gathered, band_of
from cmdpkit.evaluation.factors import VERY_NARROW, band_lu, dense_lu, is_narrow
from models import renumbered

# LU of I − γ P is off by about S · eps · (1 + γ)/(1 − γ) relative to max|c|/(1 − γ): below this for S ≤ 6, γ ≤ 0.99.
ROUNDING = 1e-12


def sparse_models_by(method):
    """Sparse models, however small, are solved by `method`: "dense", "sparse", "krylov" or "sweeps"."""
    return mock.patch.object(system, "first_method", lambda chain: method if sp.issparse(chain) else "dense")


# -- random models, with the data that they were made of --------------------------------------------------------------


class Case:
    """A random model, its policy, and the plain arrays of both."""

    def __init__(self, states, actions, m, gamma, density, seed):
        rng = np.random.default_rng(seed)
        p = rng.random((states, actions, states)) * (rng.random((states, actions, states)) < density)
        p[..., 0] += p.sum(axis=2) == 0.0
        self.p = p / p.sum(axis=2, keepdims=True)
        self.pi = rng.random((states, actions)) * (rng.random((states, actions)) < 0.8)
        self.pi[:, -1] += self.pi.sum(axis=1) == 0.0
        self.pi /= self.pi.sum(axis=1, keepdims=True)
        self.gamma = gamma
        self.tables = rng.normal(size=(m + 1, states, actions)) * 10.0 ** rng.integers(-3, 4, size=(m + 1, 1, 1))
        rho = rng.random(states) * (rng.random(states) < 0.7)
        self.rho = rho / rho.sum() if rho.sum() else np.eye(states)[0]
        self.maximise = bool(rng.random() < 0.5)
        self.at_least = rng.random(m) < 0.5
        self.per_step = rng.random(m) < 0.5
        self.limits = rng.normal(size=m)

    def cmdp(self, sparse=False):
        transitions = sp.csr_array(self.p.reshape(-1, self.p.shape[2])) if sparse else self.p
        constraints = [
            (ck.AtLeast if low else ck.AtMost)(table, limit, name=str(i), per_step=bool(step))
            for i, (table, low, limit, step) in enumerate(
                zip(self.tables[1:], self.at_least, self.limits, self.per_step, strict=True)
            )
        ]
        objective = {"reward" if self.maximise else "cost": self.tables[0]}
        return ck.CMDP(transitions, constraints=constraints, gamma=self.gamma, initial=self.rho, **objective)

    @property
    def units(self):
        """What the value of each table is multiplied by: 1 − γ where the user asked for it by the step."""
        return np.append(1.0, np.where(self.per_step, 1.0 - self.gamma, 1.0))[:, None]

    @property
    def scale(self):
        """An upper bound on the values of each table, to measure rounding with."""
        return self.units * np.abs(self.tables).max(axis=(1, 2))[:, None] / (1.0 - self.gamma)


def cases(gammas=(0.0, 0.5, 0.9, 0.99)):
    return st.builds(
        Case,
        states=st.integers(1, 6),
        actions=st.integers(1, 4),
        m=st.integers(0, 3),
        gamma=st.sampled_from(gammas),
        density=st.sampled_from([0.2, 0.5, 1.0]),
        seed=st.integers(0, 2**32 - 1),
    )


random_models = settings(max_examples=40, deadline=None)


def power_series(case):
    """V = Σ_t γᵗ P_πᵗ c_π, term by term until the terms vanish."""
    chain = np.einsum("sa,sat->st", case.pi, case.p)
    reach = np.einsum("isa,sa->is", case.tables, case.pi)
    terms = 1 if case.gamma == 0.0 else math.ceil(math.log(1e-18) / math.log(case.gamma))
    total = np.zeros_like(reach)
    for _ in range(terms):
        total += reach
        reach = case.gamma * reach @ chain.T
    return case.units * total


def exact_values(case):
    """(I − γ P_π) V = c_π solved in fractions, without any rounding (but γ, P, π and c as the floats that they are)."""
    f = np.vectorize(Fraction, otypes=[object])
    n, gamma = len(case.rho), Fraction(case.gamma)
    p, pi, tables = f(case.p), f(case.pi), f(case.tables)
    chain = [[sum(pi[s, a] * p[s, a, t] for a in range(pi.shape[1])) for t in range(n)] for s in range(n)]
    right = [[sum(table[s, a] * pi[s, a] for a in range(pi.shape[1])) for table in tables] for s in range(n)]
    rows = [[(s == t) - gamma * chain[s][t] for t in range(n)] + right[s] for s in range(n)]
    for k in range(n):  # Gauss and Jordan; the pivots of I − γ P are positive
        rows[k] = [x / rows[k][k] for x in rows[k]]
        for i in range(n):
            if i != k:
                rows[i] = [x - rows[i][k] * y for x, y in zip(rows[i], rows[k], strict=True)]
    return case.units * np.array([[float(x) for x in row[n:]] for row in rows]).T


# -- against the power series and exact arithmetic -------------------------------------------------------------------


@random_models
@given(cases())
def test_values_are_the_power_series(case):
    evaluation = ck.evaluate(case.cmdp(), case.pi)
    expected = power_series(case)
    assert (np.abs(evaluation.state_values - expected) <= ROUNDING * case.scale).all()
    at_start = expected @ case.rho
    scale = case.scale[:, 0]
    assert abs(evaluation.objective - at_start[0]) <= ROUNDING * scale[0]
    assert (np.abs(evaluation.constraint_values - at_start[1:]) <= ROUNDING * scale[1:]).all()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sparse", [False, True])
def test_values_at_gamma_close_to_one_are_those_of_exact_arithmetic(seed, sparse):
    case = Case(states=4, actions=2, m=2, gamma=0.9999, density=0.5, seed=seed)
    with sparse_models_by("sparse"):
        evaluation = ck.evaluate(case.cmdp(sparse), case.pi)
    expected = exact_values(case)
    # The condition number is 2/(1 − γ) = 2e4: eps of it, times the few operations of four states.
    assert (np.abs(evaluation.state_values - expected) <= 1e-11 * case.scale).all()
    assert abs(evaluation.occupancy.sum() - 1.0) <= 1e-11


@random_models
@given(cases())
def test_action_values_look_one_step_ahead(case):
    evaluation = ck.evaluate(case.cmdp(), case.pi)
    # Q(s, a) = c(s, a) + γ Σ P(s'|s, a) V(s'), and V(s) = Σ π(a|s) Q(s, a)
    value = evaluation.state_values
    ahead = case.gamma * np.einsum("sat,it->isa", case.p, value)
    expected = case.units[:, :, None] * case.tables + ahead
    assert (np.abs(evaluation.action_values - expected) <= ROUNDING * case.scale[:, :, None]).all()
    mean = np.einsum("sa,isa->is", case.pi, evaluation.action_values)
    assert (np.abs(mean - value) <= ROUNDING * case.scale).all()


@random_models
@given(cases())
def test_occupancy_is_a_distribution_in_balance(case):
    evaluation = ck.evaluate(case.cmdp(), case.pi)
    d, gamma = evaluation.occupancy, case.gamma
    assert d.shape == case.pi.shape
    assert d.min() >= -1e-15
    np.testing.assert_allclose(d.sum(), 1.0, rtol=ROUNDING)
    # Σ_a d(s, a) = (1 − γ) ρ(s) + γ Σ d(s', a') P(s|s', a')
    inflow = (1.0 - gamma) * case.rho + gamma * np.einsum("sa,sat->t", d, case.p)
    np.testing.assert_allclose(d.sum(axis=1), inflow, atol=ROUNDING)
    np.testing.assert_allclose(d, d.sum(axis=1)[:, None] * case.pi, atol=1e-15)
    # V_i(ρ) = ⟨d, c_i⟩ / (1 − γ)
    values = case.units[:, 0] * np.einsum("isa,sa->i", case.tables, d) / (1.0 - gamma)
    stated = np.append(evaluation.objective, evaluation.constraint_values)
    assert (np.abs(values - stated) <= ROUNDING * case.scale[:, 0]).all()


@random_models
@given(cases())
def test_dense_and_sparse_agree(case):
    dense = ck.evaluate(case.cmdp(), case.pi)
    small = ck.evaluate(case.cmdp(sparse=True), case.pi)  # a sparse model, dense LU
    with (
        sparse_models_by("sparse"),
        mock.patch.object(scipy.sparse.linalg, "splu", wraps=scipy.sparse.linalg.splu) as splu,
    ):
        sparse = ck.evaluate(case.cmdp(sparse=True), case.pi)
    assert splu.call_count == 1  # all values and the occupancy from one factorisation
    for other in (small, sparse):
        assert (np.abs(other.state_values - dense.state_values) <= ROUNDING * case.scale).all()
        assert (np.abs(other.action_values - dense.action_values) <= ROUNDING * case.scale[:, :, None]).all()
        np.testing.assert_allclose(other.occupancy, dense.occupancy, atol=ROUNDING)
        assert abs(other.objective - dense.objective) <= ROUNDING * case.scale[0, 0]
        difference = np.abs(other.constraint_values - dense.constraint_values)
        assert (difference <= ROUNDING * case.scale[1:, 0]).all()


def jumps():
    """States lead farther ahead than back."""
    rng, s = np.random.default_rng(3), np.repeat(np.arange(300), 2)
    to = np.clip(s[:, None] + rng.integers(-2, 9, (600, 4)), 0, 299)
    matrix = sp.csr_array((np.full(2400, 0.25), to.ravel(), np.arange(0, 2401, 4)), shape=(600, 300))
    return ck.CMDP(matrix, cost=rng.random((300, 2)), constraints=[ck.AtMost(rng.random((300, 2)), 9.0)], gamma=0.95)


@pytest.mark.parametrize("make", [ck.problems.two_queues, lambda: ck.problems.inventory(capacity=299), jumps])
def test_the_factors_of_a_band(make, monkeypatch):
    """Values of several costs and visits, of a policy that takes all actions, where entries appear more than once."""
    cmdp = make()
    pi = np.random.default_rng(1).dirichlet(np.ones(cmdp.actions), size=cmdp.states)
    below, above = cmdp.band
    matrix = cmdp.transitions.tocoo()
    assert (below, above) == (
        max(cmdp.pairs.state[matrix.row] - matrix.col),
        max(matrix.col - cmdp.pairs.state[matrix.row]),
    )
    weights = pi.ravel()
    chain = _gathered(cmdp.transitions, cmdp.pairs.heads, weights)
    assert not chain.has_canonical_format
    exact, exactly_transposed = dense_lu(chain, cmdp.gamma)
    cost = np.ascontiguousarray(cmdp.costs.reshape(len(cmdp.costs), cmdp.states, -1)[:, :, 0].T)
    for compiled in (0, 10**9):  # from the pairs, with and without kernels, and from the chain
        monkeypatch.setattr(backup, "COMPILED", compiled)
        for stored in (band_of(cmdp, pi), band_of(cmdp, None, chain)):
            solve, transposed = band_lu(stored, below, above)
            np.testing.assert_allclose(solve(cost), exact(cost), rtol=1e-11)
            np.testing.assert_allclose(solve(cost[:, 0]), exact(cost[:, 0]), rtol=1e-11)
            np.testing.assert_allclose(transposed(cmdp.initial), exactly_transposed(cmdp.initial), atol=1e-11)


def test_which_bands_are_narrow():
    assert is_narrow(ck.problems.inventory(capacity=999), VERY_NARROW)
    assert is_narrow(ck.problems.two_queues(capacity=40))
    assert not is_narrow(ck.problems.two_queues(capacity=40), VERY_NARROW)  # sweeps are tried first
    assert not is_narrow(ck.problems.two_queues(capacity=70))  # a sparse LU is faster
    assert not is_narrow(ck.problems.garnet(states=300))
    assert not is_narrow(ck.problems.paper())  # a dense one
    assert not is_narrow(ck.problems.inventory().with_criterion(average=True))


@pytest.mark.parametrize(("kind", "calls"), [("lattice", (0, 1)), ("renumbered", (1, 0)), ("random graph", (0, 0))])
def test_a_large_sparse_model_takes_the_path_that_suits_its_chain(kind, calls):
    """A lattice keeps its factors sparse, in a band if its states are numbered one row after the other; those of a
    random graph would fill up, and it is factorised densely."""
    make = {
        "lattice": lambda: ck.problems.two_queues(capacity=15),
        "renumbered": lambda: renumbered(ck.problems.two_queues(capacity=15, gamma=0.999)),
        "random graph": lambda: ck.problems.garnet(states=300),
    }
    cmdp = make[kind]()
    pi = np.random.default_rng(0).dirichlet(np.ones(cmdp.actions), size=cmdp.states)
    with (
        mock.patch.object(scipy.sparse.linalg, "splu", wraps=scipy.sparse.linalg.splu) as splu,
        mock.patch.object(scipy.linalg.lapack, "dgbtrf", wraps=scipy.linalg.lapack.dgbtrf) as band,
    ):
        sparse = ck.evaluate(cmdp, pi)
    assert (splu.call_count, band.call_count) == calls
    shape = (cmdp.states, cmdp.actions, cmdp.states)
    kind_of = {"reward" if cmdp.maximise else "cost": cmdp.objective}
    dense = ck.evaluate(
        ck.CMDP(
            cmdp.transitions.toarray().reshape(shape),
            constraints=cmdp.constraints,
            gamma=cmdp.gamma,
            initial=cmdp.initial,
            **kind_of,
        ),
        pi,
    )
    np.testing.assert_allclose(sparse.state_values, dense.state_values, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(sparse.occupancy, dense.occupancy, atol=1e-12)


@random_models
@given(cases(), st.sampled_from(["dense", "sparse, dense LU", "sparse, sparse LU"]))
def test_the_short_cut_for_deterministic_policies_agrees(case, path):
    choice = case.pi.argmax(axis=1)
    cmdp = case.cmdp(sparse=path != "dense")
    states = np.arange(cmdp.states)
    with sparse_models_by("sparse" if path.endswith("sparse LU") else "dense"):
        gathered = PolicySystem(cmdp, choice=choice)
        mixed = PolicySystem(cmdp, ck.TabularPolicy.deterministic(choice, cmdp.actions).probabilities)
    cost = case.tables[0][states, choice]
    scale = case.scale[0, 0]
    assert (np.abs(gathered.state_values(cost) - mixed.state_values(cost)) <= ROUNDING * scale).all()
    limit = ROUNDING / (1.0 - case.gamma)
    assert (np.abs(gathered.state_occupancy() - mixed.state_occupancy()) <= limit).all()


# -- a chain worked by hand ------------------------------------------------------------------------------------------
#
# Two states; action 0 stays, action 1 swaps; γ = 4/5. The policy swaps with probability 1/4 in state 0, 1/2 in state 1.
#
#   reward        stay  swap     r_π
#   state 0         0     4      3/4·0 + 1/4·4 = 1
#   state 1         2     6      1/2·2 + 1/2·6 = 4
#
# V0 − V1 = (r0 − r1) / (1 − γ(1 − 1/4 − 1/2)) = −3 / (1 − 1/5) = −15/4
# V0 = r0 + γ V0 + γ/4 (V1 − V0) = (1 + 1/5 · 15/4) / (1/5) = 35/4,   V1 = 35/4 + 15/4 = 25/2
# Q(0, stay) = 0 + 4/5 · 35/4 = 7,   Q(0, swap) = 4 + 4/5 · 25/2 = 14
# Q(1, stay) = 2 + 4/5 · 25/2 = 12,  Q(1, swap) = 6 + 4/5 · 35/4 = 13
#
# From state 0, P(s_t = 1) = (1 − (1/4)ᵗ)/3, so the discounted weight of state 1 is
# (1 − γ) Σ γᵗ P(s_t = 1) = (1 − (1/5)/(1 − 1/5))/3 = 1/4, and that of state 0 is 3/4.
# Check: (3/4 · 1 + 1/4 · 4) / (1/5) = 35/4.
# Swaps: (3/4 · 1/4 + 1/4 · 1/2) / (1/5) = 25/16 in all, 5/16 a step.

STAY_OR_SWAP = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
HAND_REWARD = np.array([[0.0, 4.0], [2.0, 6.0]])
SWAPS = np.array([[0.0, 1.0], [0.0, 1.0]])
HAND_POLICY = np.array([[0.75, 0.25], [0.5, 0.5]])


@pytest.mark.parametrize("threads", [1, 4])
def test_visits_in_two_halves_are_the_transposed_product(threads, monkeypatch):
    """The halves are added up in the same way by one thread and by several."""
    rng, states = np.random.default_rng(3), 700_000
    to, shares = rng.integers(0, states, 5 * states, dtype=np.int32), rng.dirichlet(np.ones(5), states)
    chain = sp.csr_array((shares.ravel(), to, 5 * np.arange(states + 1, dtype=np.int32)), shape=(states, states))
    visits, out = rng.random(states), np.empty(states)
    assert chain.nnz >= sweeps.MANY
    monkeypatch.setattr(threads_of, "helpers", lambda: threads - 1)
    sweeps._compiled_flow(chain)(visits, out)
    half = states // 2
    first, rest = chain[:half].T @ visits[:half], chain[half:].T @ visits[half:]
    np.testing.assert_array_equal(out, first + rest)


@pytest.mark.parametrize("states", [20, 400])
def test_tables_are_computed_when_they_are_used(states):
    """From what the policy was, whatever has been done to what was returned; also by another process."""
    cmdp = ck.problems.garnet(states, constraints=2, seed=1)
    pi = np.random.default_rng(2).dirichlet(np.ones(cmdp.actions), states)
    expected, found = ck.evaluate(cmdp, pi), ck.evaluate(cmdp, pi)
    # V = Σ_a π Q, and the values from the start are those of the visits
    np.testing.assert_allclose((pi * expected.action_values).sum(axis=-1), expected.state_values, rtol=1e-10)
    value = (expected.occupancy * cmdp.objective).sum() / (1.0 - cmdp.gamma)
    assert value == pytest.approx(expected.objective, rel=1e-10)
    found.state_values[:] = 0.0
    pi[:] = 0.0
    sent = pickle.loads(pickle.dumps(found))
    for later in (found, sent):
        np.testing.assert_array_equal(later.action_values, expected.action_values)
        np.testing.assert_array_equal(later.occupancy, expected.occupancy)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("accuracy", [1e-1, 1e-4, 1e-9])
@pytest.mark.parametrize("swaps", [False, True])
def test_sweeps_reach_the_accuracy_that_is_asked(swaps, accuracy, compiled):
    """Random chains, also with two halves between which every step swaps: changes then alternate."""
    rng, states, gamma = np.random.default_rng(8), 60, 0.9
    matrix = rng.dirichlet(np.full(states // 2, 0.3), states)
    zero = np.zeros((states // 2, states // 2))
    first, second = np.split(matrix, 2)
    chain = np.block([[zero, first], [second, zero]]) if swaps else np.hstack([matrix, 0 * matrix])
    cost, initial = rng.random((states, 3)), rng.dirichlet(np.ones(states))
    exact = np.linalg.solve(np.eye(states) - gamma * chain, cost)
    visits = np.linalg.solve(np.eye(states) - gamma * chain.T, initial)
    for guess in (None, exact + rng.random((states, 3))):
        swept = sweeps.sweep_values(sp.csr_array(chain), gamma, cost, guess, np.full(3, accuracy), 400, compiled)
        assert swept.reached
        assert np.abs(swept.values - exact).max() <= accuracy
    swept = sweeps.sweep_occupancy(sp.csr_array(chain), gamma, initial, None, accuracy, 400, compiled)
    assert swept.reached
    assert np.abs(swept.values - visits).sum() <= accuracy / (1.0 - gamma)


@pytest.mark.parametrize("compiled", [False, True])
def test_sweeps_that_would_not_converge_are_given_up(compiled):
    """A ring mixes so slowly that thirty sweeps predict more than are allowed."""
    states = 500
    chain = sp.csr_array(0.5 * np.roll(np.eye(states), 1, axis=1) + 0.5 * np.eye(states))
    cost = np.zeros((states, 1))
    cost[0] = 1.0
    swept = sweeps.sweep_values(chain, 0.9999, cost, None, np.full(1, 1e-9), 400, compiled)
    assert not swept.reached


@pytest.mark.parametrize("path", ["dense", "sparse, dense LU", "sparse, sparse LU"])
@pytest.mark.parametrize("sense", ["reward", "cost"])
def test_two_states_by_hand(sense, path, monkeypatch):
    if path == "sparse, sparse LU":
        monkeypatch.setattr(system, "first_method", lambda chain: "sparse")
    transitions = STAY_OR_SWAP if path == "dense" else sp.csr_array(STAY_OR_SWAP.reshape(4, 2))
    limits = [
        ck.AtMost(SWAPS, 2.0, name="swaps"),
        ck.AtLeast(SWAPS, 1.0, name="at least"),
        ck.AtMost(SWAPS, 0.5, name="swaps a step", per_step=True),
        ck.AtLeast(SWAPS, 0.5, name="at least a step", per_step=True),
    ]
    cmdp = ck.CMDP(transitions, constraints=limits, gamma=0.8, initial=0, **{sense: HAND_REWARD})
    evaluation = ck.evaluate(cmdp, HAND_POLICY)
    # The limits and their senses change nothing: these are the user's quantities, a reward and a cost alike.
    assert evaluation.objective == pytest.approx(35 / 4, rel=1e-14)
    np.testing.assert_allclose(evaluation.constraint_values, [25 / 16, 25 / 16, 5 / 16, 5 / 16], rtol=1e-14)
    np.testing.assert_allclose(evaluation.state_values[0], [35 / 4, 25 / 2], rtol=1e-14)
    np.testing.assert_allclose(evaluation.action_values[0], [[7.0, 14.0], [12.0, 13.0]], rtol=1e-14)
    np.testing.assert_allclose(evaluation.occupancy, [[9 / 16, 3 / 16], [1 / 8, 1 / 8]], rtol=1e-14)
    np.testing.assert_allclose(evaluation.state_values[:, 0], [35 / 4, *evaluation.constraint_values], rtol=1e-14)
    assert evaluation.state_values.shape == (5, 2)
    assert evaluation.action_values.shape == (5, 2, 2)


def test_a_start_in_the_other_state_or_anywhere():
    def objective(initial):
        return ck.evaluate(ck.CMDP(STAY_OR_SWAP, reward=HAND_REWARD, gamma=0.8, initial=initial), HAND_POLICY).objective

    assert objective(1) == pytest.approx(25 / 2, rel=1e-14)
    assert objective(None) == pytest.approx((35 / 4 + 25 / 2) / 2, rel=1e-14)
    assert objective([0.2, 0.8]) == pytest.approx(0.2 * 35 / 4 + 0.8 * 25 / 2, rel=1e-14)


def test_a_policy_object_and_its_table_are_the_same():
    cmdp = ck.CMDP(STAY_OR_SWAP, reward=HAND_REWARD, gamma=0.8)
    by_table = ck.evaluate(cmdp, HAND_POLICY)
    by_object = ck.evaluate(cmdp, ck.TabularPolicy(HAND_POLICY))
    by_log = ck.evaluate(cmdp, ck.TabularPolicy.from_log(np.log(HAND_POLICY) + 1e3))
    np.testing.assert_array_equal(by_object.state_values, by_table.state_values)
    np.testing.assert_allclose(by_log.state_values, by_table.state_values, rtol=1e-12)
    assert isinstance(by_table.objective, float)


@pytest.mark.parametrize("sense", ["reward", "cost"])
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zero_is_not_minus_zero(sense, zero):
    cmdp = ck.CMDP(STAY_OR_SWAP, gamma=0.8, **{sense: np.full((2, 2), zero)})
    assert math.copysign(1.0, ck.evaluate(cmdp, HAND_POLICY).objective) == 1.0


# -- corners -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
def test_gamma_zero_sees_only_the_first_step(sparse, monkeypatch):
    monkeypatch.setattr(system, "first_method", lambda chain: "sparse" if sp.issparse(chain) else "dense")
    case = Case(states=4, actions=3, m=2, gamma=0.0, density=0.5, seed=3)
    evaluation = ck.evaluate(case.cmdp(sparse), case.pi)
    np.testing.assert_array_equal(evaluation.action_values, case.tables)
    np.testing.assert_allclose(evaluation.state_values, (case.tables * case.pi).sum(axis=2), rtol=1e-14)
    np.testing.assert_array_equal(evaluation.occupancy, case.rho[:, None] * case.pi)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.9999])
def test_one_state_is_a_geometric_series(gamma, sparse, monkeypatch):
    monkeypatch.setattr(system, "first_method", lambda chain: "sparse" if sp.issparse(chain) else "dense")
    transitions = sp.csr_array(np.ones((2, 1))) if sparse else np.ones((1, 2, 1))
    limits = [ck.AtLeast([[1.0, 5.0]], 0.0), ck.AtLeast([[1.0, 5.0]], 0.0, per_step=True)]
    cmdp = ck.CMDP(transitions, reward=[[0.0, 4.0]], constraints=limits, gamma=gamma)
    evaluation = ck.evaluate(cmdp, [[0.25, 0.75]])
    # 3/(1 − γ) earned, 4/(1 − γ) used, 4 a step
    assert evaluation.objective == pytest.approx(3.0 / (1.0 - gamma), rel=1e-14)
    np.testing.assert_allclose(evaluation.constraint_values, [4.0 / (1.0 - gamma), 4.0], rtol=1e-14)
    np.testing.assert_allclose(evaluation.occupancy, [[0.25, 0.75]], rtol=1e-14)
    np.testing.assert_allclose(
        evaluation.action_values[0], gamma * 3.0 / (1.0 - gamma) + np.array([[0.0, 4.0]]), rtol=1e-14
    )


@pytest.mark.parametrize("sparse", [False, True])
def test_one_action_is_a_chain_without_choice(sparse, monkeypatch):
    # A ring of three states: 0 → 1 → 2 → 0, reward 1 in state 0: V(0) = 1/(1 − γ³), V(1) = γ² V(0), V(2) = γ V(0).
    monkeypatch.setattr(system, "first_method", lambda chain: "sparse" if sp.issparse(chain) else "dense")
    ring = np.roll(np.eye(3), 1, axis=1)
    transitions = sp.csr_array(ring) if sparse else ring[:, None, :]
    cmdp = ck.CMDP(transitions, reward=[[1.0], [0.0], [0.0]], gamma=0.5, initial=0)
    evaluation = ck.evaluate(cmdp, np.ones((3, 1)))
    np.testing.assert_allclose(evaluation.state_values, [[8 / 7, 2 / 7, 4 / 7]], rtol=1e-14)
    np.testing.assert_allclose(evaluation.action_values[0, :, 0], evaluation.state_values[0], rtol=1e-14)
    # from 0: visits 1, γ, γ² and again; (1 − γ) 8/7 (1, 1/2, 1/4)
    np.testing.assert_allclose(evaluation.occupancy[:, 0], [4 / 7, 2 / 7, 1 / 7], rtol=1e-14)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("gamma", [0.9, 0.9999])
def test_absorbing_and_unreachable_states(gamma, sparse, monkeypatch):
    # State 0 leaves for the absorbing state 1 with probability 1/2 a step; nothing leads to state 2, which leads to 0.
    monkeypatch.setattr(system, "first_method", lambda chain: "sparse" if sp.issparse(chain) else "dense")
    p = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    transitions = sp.csr_array(p) if sparse else p[:, None, :]
    cmdp = ck.CMDP(transitions, cost=[[1.0], [3.0], [100.0]], gamma=gamma, initial=0)
    evaluation = ck.evaluate(cmdp, np.ones((3, 1)))
    # V(1) = 3/(1 − γ), V(0) = (1 + γ/2 V(1))/(1 − γ/2), V(2) = 100 + γ V(0): values exist where nobody goes.
    absorbed = 3.0 / (1.0 - gamma)
    start = (1.0 + 0.5 * gamma * absorbed) / (1.0 - 0.5 * gamma)
    np.testing.assert_allclose(evaluation.state_values, [[start, absorbed, 100.0 + gamma * start]], rtol=1e-12)
    assert evaluation.objective == pytest.approx(start, rel=1e-12)
    # Visits to 0: Σ (γ/2)ᵗ; all else is spent in 1.
    here = (1.0 - gamma) / (1.0 - 0.5 * gamma)
    np.testing.assert_allclose(evaluation.occupancy[:2, 0], [here, 1.0 - here], rtol=1e-12)
    assert evaluation.occupancy[2, 0] == 0.0


def test_an_action_of_probability_zero_has_a_value_but_no_weight():
    cmdp = ck.CMDP(STAY_OR_SWAP, reward=HAND_REWARD, gamma=0.5, initial=0)
    evaluation = ck.evaluate(cmdp, ck.TabularPolicy.deterministic([0, 0], 2))
    # Staying earns 0 in state 0 and 2/(1 − γ) = 4 in state 1; swapping once first: 4 + 4/2 = 6, and 6 + 0 = 6.
    np.testing.assert_allclose(evaluation.action_values[0], [[0.0, 6.0], [4.0, 6.0]], rtol=1e-14)
    np.testing.assert_array_equal(evaluation.occupancy, [[1.0, 0.0], [0.0, 0.0]])


def test_every_deterministic_policy_of_a_small_model_against_a_walk():
    # With deterministic moves a policy is one walk, followed here step by step.
    rng = np.random.default_rng(0)
    successor, reward, gamma = rng.integers(0, 3, size=(3, 2)), rng.normal(size=(3, 2)), 0.7
    cmdp = ck.CMDP(np.eye(3)[successor], reward=reward, gamma=gamma, initial=2)
    for choice in itertools.product(range(2), repeat=3):
        total, state = 0.0, 2
        for t in range(150):  # 0.7¹⁵⁰ < 1e-23
            total += gamma**t * reward[state, choice[state]]
            state = successor[state, choice[state]]
        evaluation = ck.evaluate(cmdp, ck.TabularPolicy.deterministic(choice, 2))
        assert evaluation.objective == pytest.approx(total, abs=1e-13)
