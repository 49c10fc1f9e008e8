"""Finite horizons: against backward induction by hand and an independent LP over all stages."""

import copy
import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from scipy.optimize import linprog

import cmdpkit as ck
from cmdpkit.certificates.checker import values_with_errors
from cmdpkit.cli import cli
from cmdpkit.evaluation.backup import advantages, induction
from cmdpkit.evaluation.stages import ahead_of
from cmdpkit.evaluation.system import PolicySystem
from cmdpkit.exact.mdp import Oracle, minimise
from cmdpkit.policy import lowered_policy

SEEDS = 48


def staged(seed, feasible=True, m=None, states=None):
    rng = np.random.default_rng(seed)
    S, A, T = states or int(rng.integers(1, 7)), int(rng.integers(1, 4)), int(rng.integers(1, 9))
    gamma = [None, 1, 0.9, 0.5, 0.0][int(rng.choice(5, p=[0.4, 0.2, 0.2, 0.1, 0.1]))]
    P = rng.dirichlet(np.full(S, 0.4), size=(S, A))
    P = np.where(P < 1e-6, 0.0, P)
    P /= P.sum(axis=2, keepdims=True)
    m = int(rng.integers(0, 4)) if m is None else m
    available = np.ones((S, A), dtype=bool)
    if rng.random() < 0.4:
        available = rng.random((S, A)) < 0.6
        available[np.arange(S), rng.integers(A, size=S)] = True
    tables = rng.normal(size=(m + 1, S, A)) * 10.0 ** rng.integers(-1, 2, size=(m + 1, 1, 1))
    rho = rng.dirichlet(np.ones(S))
    pi = rng.random((T, S, A)) * available
    pi /= pi.sum(axis=2, keepdims=True)
    limits, weight, now, x = [], 1.0 if gamma is None else gamma, rho, np.zeros((T, S, A))
    for t in range(T):
        x[t] = weight**t * now[:, None] * pi[t]
        now = np.einsum("s,sa,sat->t", now, pi[t], P)
    for table in tables[1:]:
        value, margin = float((x * table).sum()), rng.uniform(0.0, 0.05) * np.abs(table).max()
        at_least = bool(rng.random() < 0.5)
        limits.append((ck.AtLeast if at_least else ck.AtMost)(table, value - margin if at_least else value + margin))
    if not feasible:
        limits.append(ck.AtMost(np.ones((S, A)), 0.99 * float(x.sum()), name="too few steps"))
    if rng.random() < 0.5:
        P = sp.csr_array(P.reshape(S * A, S))
    kind = "reward" if rng.random() < 0.5 else "cost"
    more = {} if gamma is None else {"gamma": gamma}
    return ck.CMDP(P, constraints=limits, horizon=T, initial=rho, available=available, **more, **{kind: tables[0]})


def parts(cmdp):
    """P (N, S) and costs (m + 1, N) to be minimised, from what the user gave."""
    P = cmdp.transitions.toarray() if sp.issparse(cmdp.transitions) else np.asarray(cmdp.transitions)
    sense = -1.0 if cmdp.maximise else 1.0
    return P, np.array([sense * cmdp.objective.ravel()] + [c.sign * np.ravel(c.values) for c in cmdp.constraints])


def lp(cmdp):
    """The LP over the visits of all stages, one block of variables per stage."""
    P, costs = parts(cmdp)
    T, S = cmdp.horizon, cmdp.states
    leave = (np.arange(S)[:, None] == cmdp.pairs.state).astype(float)
    balance = np.kron(np.eye(T), leave) - np.kron(np.eye(T, k=-1), cmdp.gamma * P.T)
    start = np.append(cmdp.initial, np.zeros((T - 1) * S))
    limits = {"A_ub": np.tile(costs[1:], T), "b_ub": [c.sign * c.limit for c in cmdp.constraints]}
    found = linprog(
        np.tile(costs[0], T), A_eq=balance, b_eq=start, method="highs", **(limits if cmdp.constraints else {})
    )
    assert found.status in (0, 2), found.message
    return None if found.status == 2 else cmdp.sense * found.fun


def backward(cmdp, cost):
    """Backward induction by hand: the least value from the start, and the values of all stages."""
    P, _ = parts(cmdp)
    value, values = np.zeros(cmdp.states), []
    for _ in range(cmdp.horizon):
        q = cost + cmdp.gamma * (P @ value)
        value = np.array([q[cmdp.pairs.state == s].min() for s in range(cmdp.states)])
        values.append(value)
    return float(cmdp.initial @ value), np.array(values[::-1])


@pytest.mark.parametrize("block", range(8))
def test_the_answers_are_those_of_an_independent_lp(block):
    for seed in range(block, SEEDS, 8):
        cmdp = staged(seed, feasible=seed % 7 != 3)
        optimum = lp(cmdp)
        for method in ["auto"] + ["columns", "lp"] * (seed % 3 == 0) + ["pmd-pd"] * (seed % 3 == 0 and seed % 7 != 3):
            result = ck.solve(cmdp, method)
            if optimum is None:
                assert result.status is ck.Status.INFEASIBLE, (seed, method)
                assert result.certificate.infeasibility_margin > 0.0
                continue
            assert result.status is ck.Status.OPTIMAL, (seed, method, result.message)
            assert abs(result.objective - optimum) <= 2e-6 * max(1.0, abs(optimum)), (seed, method)
            assert isinstance(result.policy, ck.StagedPolicy)
            assert result.policy.horizon == cmdp.horizon
        proof = ck.certify(cmdp, result.policy)
        assert (proof.infeasibility is not None) == (optimum is None)
        if optimum is not None:
            assert cmdp.sense * (proof.bound - optimum) <= 1e-8 * max(1.0, abs(optimum)), seed


@pytest.mark.parametrize("seed", range(40))
def test_without_limits_it_is_backward_induction(seed):
    cmdp = staged(seed, m=0)
    least, values = backward(cmdp, parts(cmdp)[1][0])
    result = ck.solve(cmdp)
    assert result.status is ck.Status.OPTIMAL
    assert np.isclose(cmdp.sense * result.objective, least, rtol=1e-9, atol=1e-9)
    reached = ck.evaluate(cmdp, result.policy).occupancy.sum(axis=2) > 1e-9
    found = cmdp.sense * ck.evaluate(cmdp, result.policy).state_values[0]
    assert np.allclose(found[reached], values[reached], atol=1e-6)


@pytest.mark.parametrize("seed", range(40))
def test_values_and_visits_are_those_of_the_stages(seed):
    cmdp, rng = staged(seed), np.random.default_rng(seed)
    S, A, T = cmdp.states, cmdp.actions, cmdp.horizon
    pi = np.where(cmdp.pairs.mask, rng.random((T, S, A)), 0.0)
    pi /= pi.sum(axis=2, keepdims=True)
    found = ck.evaluate(cmdp, ck.StagedPolicy(pi))
    P, costs = parts(cmdp)
    signs = np.append(cmdp.sense, cmdp.signs)[:, None]
    full = np.array([cmdp.pairs.table(column, 0.0) for column in P.T]).transpose(1, 2, 0)  # (S, A, S)
    tables = np.array([cmdp.pairs.table(c, 0.0) for c in signs * costs])
    V = np.zeros((len(costs), T + 1, S))
    for t in reversed(range(T)):
        q = tables + cmdp.gamma * np.einsum("sat,it->isa", full, V[:, t + 1])
        assert np.allclose(np.where(cmdp.pairs.mask, found.action_values[:, t], 0.0), q * cmdp.pairs.mask, atol=1e-9)
        V[:, t] = (q * pi[t]).sum(axis=2)
    now = cmdp.initial
    for t in range(T):
        assert np.allclose(found.occupancy[t], cmdp.gamma**t * now[:, None] * pi[t], atol=1e-12)
        now = np.einsum("s,sa,sat->t", now, pi[t], full)
    assert np.allclose(found.state_values, V[:, :T], atol=1e-9)
    assert np.isclose(found.objective, cmdp.initial @ V[0, 0], atol=1e-9)
    assert np.allclose(found.constraint_values, V[1:, 0] @ cmdp.initial, atol=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_bounds_hold_in_exact_arithmetic(seed):
    cmdp, rng = staged(seed), np.random.default_rng(seed + 99)
    P, costs = parts(cmdp)
    exact_P = [[Fraction(float(p)) for p in row] for row in P]
    exact_costs = [[Fraction(float(c)) for c in row] for row in costs]
    gamma, initial = Fraction(cmdp.gamma), [Fraction(float(r)) for r in cmdp.initial]
    own = [np.flatnonzero(cmdp.pairs.state == s) for s in range(cmdp.states)]

    def run(cost, choose):
        value = [Fraction(0)] * cmdp.states
        for t in reversed(range(cmdp.horizon)):
            ahead = [sum(p * v for p, v in zip(row, value, strict=True) if p) for row in exact_P]
            value = [choose(t, rows, [cost[k] + gamma * ahead[k] for k in rows]) for rows in own]
        return sum(r * v for r, v in zip(initial, value, strict=True))

    weights = rng.exponential(size=len(costs))
    mixed = [sum(Fraction(float(w)) * c[k] for w, c in zip(weights, exact_costs, strict=True)) for k in range(len(P))]
    offsets = [Fraction(float(c.limit)) * int(c.sign) for c in cmdp.constraints]
    offset = sum((Fraction(float(w)) * b for w, b in zip(weights[1:], offsets, strict=True)), Fraction(0))
    least = run(mixed, lambda t, rows, q: min(q)) - offset
    bound = minimise(cmdp.lowering.model, weights).bound
    assert bound <= least
    assert float(least) - bound <= 1e-10 * (1.0 + float(weights @ np.abs(costs).max(axis=1)) * cmdp.horizon)
    pi = np.where(cmdp.pairs.mask, rng.random((cmdp.horizon, cmdp.states, cmdp.actions)), 0.0)
    policy = ck.StagedPolicy(pi / pi.sum(axis=2, keepdims=True))
    flat = [[Fraction(float(p)) for p in table.ravel()] for table in policy.pi]
    if not cmdp.pairs.is_full:
        flat = [[table[s * cmdp.actions + a] for s, a in np.argwhere(cmdp.pairs.mask)] for table in flat]

    def play(t, rows, q):
        total = sum(flat[t][k] for k in rows)
        return sum(flat[t][k] / total * x for k, x in zip(rows, q, strict=True))

    values, errors = values_with_errors(cmdp.lowering.model, lowered_policy(cmdp, policy))
    for value, error, cost in zip(values, errors, exact_costs, strict=True):
        assert abs(Fraction(float(value)) - run(cost, play)) <= Fraction(float(error))


def test_a_limit_makes_late_stages_careful():
    """Selling one item in 3 weeks: asking 2 sells with 1/2, asking 1 always; the policy depends on the week."""
    P = np.zeros((2, 2, 2))
    P[0, 0], P[0, 1], P[1, :] = [0.5, 0.5], [0.0, 1.0], [0.0, 1.0]
    sale = np.array([[1.0, 1.0], [0.0, 0.0]])
    cmdp = ck.CMDP(P, reward=sale, horizon=3, initial=0)
    result = ck.solve(cmdp)
    # Worth of the item in the last week: max(1, 1) with price 2·1/2; before that 2·1/2 + 1/2·1 = 1.5, then 1.75
    assert result.objective == pytest.approx(1.75, abs=1e-10)
    kept = np.zeros((2, 2))
    kept[0] = 1.0  # weeks in stock
    limited = ck.solve(ck.CMDP(P, reward=sale, horizon=3, initial=0, constraints=[ck.AtMost(kept, 1.5)]))
    assert limited.constraint_values[0] == pytest.approx(1.5, abs=1e-6)
    # In stock for 1 + q/2 + q q'/4 weeks, where q, q' are the chances of asking 2: q = 1, q' = 0 earns 1.5
    assert limited.objective == pytest.approx(1.5, abs=1e-6)


# -- policies ---------------------------------------------------------------------------------------------------------


def test_policies_of_every_form_are_taken():
    cmdp = staged(2)
    T, S, A = cmdp.horizon, cmdp.states, cmdp.actions
    table = cmdp.pairs.table(cmdp.pairs.uniform(), 0.0)
    forms = [table, ck.TabularPolicy(table), np.tile(table, (T, 1, 1)), ck.StagedPolicy([table] * T)]
    objectives = {ck.evaluate(cmdp, form).objective for form in forms}
    assert max(objectives) - min(objectives) <= 1e-12
    assert ck.certify(cmdp, ck.StagedPolicy([table] * T)).objective == pytest.approx(objectives.pop(), abs=1e-10)
    with pytest.raises(ValueError, match=f"has {T + 1} stages, the model has {T}"):
        ck.evaluate(cmdp, ck.StagedPolicy([table] * (T + 1)))
    with pytest.raises(TypeError, match="the model has no horizon"):
        ck.evaluate(ck.CMDP(np.ones((1, 1, 1)), cost=[[0.0]], gamma=1), ck.StagedPolicy([[[1.0]]]))
    mixture = ck.MixturePolicy([ck.TabularPolicy(table)] * 2)
    assert ck.evaluate(cmdp, mixture).objective == pytest.approx(ck.evaluate(cmdp, table).objective, abs=1e-12)
    result = ck.solve(cmdp, "pmd-pd", initial_policy=ck.StagedPolicy([table] * T))
    assert result.status is ck.Status.OPTIMAL
    assert isinstance(result.last_policy, ck.StagedPolicy)
    assert result.average_policy.probabilities.shape == (T, S, A)
    discounted = ck.problems.paper()
    with pytest.raises(TypeError, match="a table for each of 2 stages"):
        ck.certify(discounted, ck.StagedPolicy([discounted.pairs.uniform()] * 2))


def test_staged_policies_are_checked_and_kept_in_files(tmp_path):
    policy = ck.StagedPolicy([[[0.25, 0.75]], [[1.0, 0.0]]])
    policy.save(tmp_path / "policy.npz")
    again = ck.StagedPolicy.load(tmp_path / "policy.npz")
    assert (again.log_pi == policy.log_pi).all()
    assert len(again) == 2
    assert again.sample(0, 1, np.random.default_rng(0)) == 0
    for stage in (2, -1, 0.5, True):
        with pytest.raises(ValueError, match="is not one of 0 to 1"):
            policy.at(stage)
    with pytest.raises(ValueError, match="stage 1 has other states"):
        ck.StagedPolicy([[[1.0]], [[0.5, 0.5]]])
    with pytest.raises(ValueError, match="at least one stage"):
        ck.StagedPolicy([])
    with pytest.raises(ValueError, match="read-only"):
        policy.log_pi[0] = 0.0
    assert repr(pickle.loads(pickle.dumps(policy))) == "StagedPolicy(horizon=2, states=1, actions=2)"


def test_models_and_results_keep_their_horizon(tmp_path):
    for seed in (1, 2, 3, 5):
        cmdp = staged(seed)
        cmdp.save(tmp_path / "model.npz")
        again = ck.CMDP.load(tmp_path / "model.npz")
        assert (again.criterion, again.horizon, again.gamma) == ("horizon", cmdp.horizon, cmdp.gamma)
        assert repr(again) == repr(cmdp)
        result = ck.solve(cmdp)
        assert ck.solve(again).objective == ck.solve(copy.deepcopy(cmdp)).objective == result.objective
        result.save(tmp_path / "result.npz")
        loaded = ck.Result.load(tmp_path / "result.npz")
        assert loaded.model.horizon == cmdp.horizon
        assert (loaded.policy.log_pi == result.policy.log_pi).all()
        assert str(loaded) == str(result)
        assert f"over {cmdp.horizon} step" in str(result)


@pytest.mark.parametrize(
    ("more", "error", "text"),
    [
        ({"horizon": 0}, ValueError, "horizon must be at least 1"),
        ({"horizon": 2.5}, TypeError, "horizon must be a whole number"),
        ({"horizon": True}, TypeError, "horizon must be a whole number"),
        ({"horizon": 3, "gamma": 1.5}, ValueError, "gamma must be in"),
        ({}, TypeError, "gamma is needed"),
        ({"horizon": 3, "constraints": [ck.AtMost([[1.0]], 1.0, per_step=True)]}, ValueError, "by the horizon"),
    ],
)
def test_refusals(more, error, text):
    with pytest.raises(error, match=text):
        ck.CMDP(np.ones((1, 1, 1)), cost=[[1.0]], **more)


# -- limits that change, frontiers, starts ----------------------------------------------------------------------------


def test_other_limits_share_the_stages_and_start_from_a_result(tmp_path):
    cmdp = next(c for c in map(staged, range(1, 50)) if c.num_constraints == 2)
    name = cmdp.names[0]
    result = ck.solve(cmdp)
    loose = float(cmdp.limits[0] + cmdp.signs[0])
    other = cmdp.with_limits({name: loose})
    assert other.lowering.model.transitions is cmdp.lowering.model.transitions
    optimum = lp(other)
    result.save(tmp_path / "result.npz")
    for start in (None, result, ck.Result.load(tmp_path / "result.npz")):
        again = ck.solve(other, start=start)
        assert again.status is ck.Status.OPTIMAL
        assert abs(again.objective - optimum) <= 2e-6 * max(1.0, abs(optimum))
    fewer = cmdp.with_limits({name: None})
    assert abs(ck.solve(fewer).objective - lp(fewer)) <= 2e-6 * max(1.0, abs(lp(fewer)))
    turned = cmdp.with_objective(cost=name)
    assert abs(ck.solve(turned).objective - lp(turned)) <= 2e-6 * max(1.0, abs(lp(turned)))
    with pytest.raises(ValueError, match="another horizon"):
        ck.solve(ck.CMDP(np.ones((1, 1, 1)), cost=[[1.0]], horizon=2), start=ck.solve(one_state(3)))
    with pytest.raises(ValueError, match="another horizon"):
        ck.solve(ck.CMDP(np.ones((1, 1, 1)), cost=[[1.0]], gamma=0.5), start=ck.solve(one_state(3)))


def one_state(horizon):
    return ck.CMDP(np.ones((1, 1, 1)), cost=[[1.0]], horizon=horizon)


def test_frontiers_and_diagnoses():
    cmdp = next(c for c in map(staged, range(1, 50)) if c.num_constraints == 1 and c.horizon > 2 and c.actions > 1)
    name = cmdp.names[0]
    curve = ck.frontier(cmdp, name)
    assert curve.complete
    middle = float(np.median(curve.limits))
    low, high = curve.at(middle)
    optimum = lp(cmdp.with_limits({name: middle}))
    slack = 1e-7 * max(1.0, abs(optimum))
    assert low - slack <= optimum <= high + slack
    policy = curve.policy(middle)
    assert isinstance(policy, ck.StagedPolicy)
    assert low - slack <= ck.evaluate(cmdp, policy).objective <= high + slack
    broken = cmdp.with_limits({name: float(curve.least[1] - cmdp.signs[0])})
    found = ck.diagnose(broken)
    assert (found.feasible, found.conflict) == (False, (name,))
    assert found.misses[0] == pytest.approx(1.0, abs=1e-4)
    assert isinstance(found.policy, ck.StagedPolicy)


# -- stages, and blocks of states -------------------------------------------------------------------------------------


def many_stages(seed=0, states=60, horizon=40, missing=False, dense=False):
    rng = np.random.default_rng(seed)
    P = sp.csr_array(
        (
            rng.dirichlet(np.ones(3), states * 3).ravel(),
            rng.integers(0, states, states * 9),
            np.arange(0, states * 9 + 1, 3),
        ),
        shape=(states * 3, states),
    )
    available = rng.random((states, 3)) < 0.7 if missing else np.ones((states, 3), dtype=bool)
    available[:, 0] = True
    costs = rng.random((3, states, 3))
    limits = [ck.AtMost(c, 0.45 * horizon) for c in costs[1:]]
    if dense:
        P = 0.5 * P.toarray().reshape(states, 3, states) + 0.5 * rng.dirichlet(np.ones(states), (states, 3))
    return ck.CMDP(P, cost=costs[0], constraints=limits, horizon=horizon, available=available)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("form", ["sparse", "compiled", "dense"])
def test_large_horizons_are_solved_stage_by_stage(missing, form, monkeypatch):
    if form == "compiled":
        monkeypatch.setattr("cmdpkit.evaluation.backup.COMPILED", 0)
    cmdp = many_stages(missing=missing, dense=form == "dense")
    model, rng = cmdp.lowering.model, np.random.default_rng(1)
    assert sp.issparse(model.transitions.matrices[0]) == (form != "dense")
    weights = np.array([1.0, 0.3, 0.2])
    found = minimise(model, weights)
    assert found.evaluations == 1  # backward induction is exact: nothing is left for policy iteration
    cost = weights @ parts(cmdp)[1]
    least = backward(cmdp, cost)[0] - weights[1:] @ cmdp.limits
    assert np.isclose(weights @ found.values, least, rtol=1e-12)
    assert least - 1e-9 <= found.bound <= least
    whole = model.transitions.tocsr().toarray()
    assert np.allclose(whole.sum(axis=1), 1.0)
    b, first = rng.random((model.states, 2)), np.append(model.pairs.first[:-1], 0)[: model.states]
    half = np.where(rng.random(model.pairs.shape) < 0.5, 0.0, rng.random(model.pairs.shape))
    half.ravel()[first] = 1.0
    half /= model.pairs.over(model.pairs.sum(half))
    once = model.pairs.one_hot(found.choice)
    for pi, given in ((model.pairs.uniform(), {}), (half, {}), (once, {"choice": found.choice})):
        system = PolicySystem(model, **(given or {"probabilities": pi}))
        assert system.plan.method == "stages"
        chain = np.add.reduceat(pi.reshape(-1, 1) * whole, first, axis=0)
        dense = np.eye(model.states) - model.gamma * chain
        assert np.allclose(system.chain @ b, chain @ b, atol=1e-13)
        assert np.allclose(system.chain @ b[:, 0], chain @ b[:, 0], atol=1e-13)
        assert np.allclose(system.chain.T @ b[:, 0], chain.T @ b[:, 0], atol=1e-13)
        assert np.allclose(system.solve(b), np.linalg.solve(dense, b), rtol=1e-10)
        assert np.allclose(system.state_occupancy(), np.linalg.solve(dense.T, model.initial), atol=1e-12)
    values = rng.random((model.states, 3))  # of any kind, and not 0 at the end
    table = model.costs.T + model.gamma * whole @ values - values[model.pairs.state]
    assert np.allclose(advantages(model, values), table, atol=1e-12)
    some = rng.choice(model.pairs.count, 50)
    assert np.allclose(model.transitions.ahead_of(some, values), whole[some] @ values, atol=1e-13)
    assert np.allclose(model.transitions @ values[:, 0], whole @ values[:, 0], atol=1e-13)


def test_the_transitions_are_held_once():
    cmdp = many_stages()
    matrices = cmdp.lowering.model.transitions.matrices
    assert len(matrices) == 39
    assert all(m is cmdp.transitions for m in matrices)
    for twin in (copy.deepcopy(cmdp), pickle.loads(pickle.dumps(cmdp))):
        assert all(m is twin.transitions for m in twin.lowering.model.transitions.matrices)
        with pytest.raises(ValueError, match="read-only"):
            twin.transitions.data[0] = 0.0
        assert np.allclose((twin.lowering.model.transitions @ np.ones(2401)), 1.0)


def test_a_large_horizon_is_certified():
    result = ck.solve(many_stages())
    assert result.status is ck.Status.OPTIMAL


def test_blocks_are_only_seen_where_they_are():
    rng = np.random.default_rng(0)
    forward = sp.csr_array(np.kron(np.eye(4, k=1), np.full((10, 10), 0.1)) + np.kron(np.diag([0, 0, 0, 1]), np.eye(10)))
    assert ck.CMDP(forward, cost=rng.random((40, 1)), gamma=0.9).blocks == (0, 10, 20, 30, 40)
    back = forward.tolil()
    back[25, :] = 0.0
    back[25, 3] = 1.0
    assert ck.CMDP(back.tocsr(), cost=rng.random((40, 1)), gamma=0.9).blocks is None
    line = sp.csr_array(np.eye(40, k=1) + np.diag(np.arange(40) == 39))
    assert ck.CMDP(line, cost=rng.random((40, 1)), gamma=0.9).blocks is None  # forty blocks of one state
    assert ck.CMDP(forward.toarray().reshape(40, 1, 40), cost=rng.random((40, 1)), gamma=0.9).blocks is None


def test_induction_knows_that_states_may_stay():
    """Two actions: stay with 1/2 at cost 1, or go on at cost 1.7; staying pays while it is cheap."""
    stay = 0.5 * sp.eye_array(20) + 0.5 * sp.eye_array(20, k=10)
    go = sp.eye_array(20, k=10)
    end = sp.csr_array((np.ones(10), (np.arange(10, 20), np.arange(10, 20))), shape=(20, 20))
    top = sp.csr_array((np.arange(20) < 10).astype(float)[:, None] * np.ones((1, 20)))
    both = [sp.csr_array(top.multiply(sp.csr_array(m)) + end) for m in (stay, go)]
    P = sp.csr_array(np.stack([m.toarray() for m in both], axis=1).reshape(40, 20))
    cost = np.zeros((20, 2))
    cost[:10] = np.stack([np.full(10, 1.0), np.linspace(1.0, 2.5, 10)], axis=1)
    cmdp = ck.CMDP(P, cost=cost, gamma=0.8)
    assert cmdp.blocks == (0, 10, 20)
    limited = ck.CMDP(P, cost=cost, constraints=[ck.AtMost(cost, 1.0, name="c")], gamma=0.8)
    assert limited.blocks is limited.with_limits(c=2.0).blocks  # which depend on transitions and criterion only
    best = np.minimum(1.0 / (1.0 - 0.4), cost[:10, 1])
    choice = induction(cmdp, cost.ravel(), cmdp.blocks)
    assert (choice[:10] == (cost[:10, 1] < 1.0 / 0.6)).all()
    assert minimise(cmdp, np.ones(1)).values[0] == pytest.approx(best.sum() / 20, rel=1e-12)


def test_the_command_line_shows_and_certifies_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    staged(2).save("model.npz")
    runner = CliRunner()
    done = runner.invoke(cli, ["solve", "model.npz", "--out", "policy.npz", "--labels"])
    assert done.exit_code == 0, done.output
    assert "stage" in done.output
    for file, words in (("model.npz", "horizon"), ("policy.npz", "stages"), ("policy.result.npz", "stage")):
        if Path(file).exists():
            shown = runner.invoke(cli, ["show", file])
            assert shown.exit_code == 0, shown.output
            assert words in shown.output
    assert runner.invoke(cli, ["certify", "model.npz", "policy.npz"]).exit_code == 0


def test_tables_name_the_stage():
    policy = ck.StagedPolicy([[[0.25, 0.75]], [[1.0, 0.0]]])
    assert list(policy.table()) == [(0, 0, 1, 0.75), (0, 0, 0, 0.25), (1, 0, 0, 1.0)]
    assert list(policy.table(2)) == [(0, 0, 1, 0.75), (0, 0, 0, 0.25)]
    assert policy.table(2).total == 3
    assert policy.randomised_states() == [(0, 0)]


def test_limits_with_two_ends_and_deterministic_policies():
    P = np.zeros((2, 2, 2))
    P[0, 0], P[0, 1], P[1, :] = [0.5, 0.5], [0.0, 1.0], [0.0, 1.0]
    sale, kept = np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([[1.0, 1.0], [0.0, 0.0]])
    for limit in (ck.Equal(kept, 1.25), ck.Between(kept, 1.1, 1.25)):
        cmdp = ck.CMDP(P, reward=sale, horizon=3, initial=0, constraints=[limit])
        result = ck.solve(cmdp)
        assert result.status is ck.Status.OPTIMAL
        assert result.objective == pytest.approx(1.25, abs=1e-6)
        assert result.constraint_values[0] == pytest.approx(1.25, abs=1e-6)
    pure = ck.solve(
        ck.CMDP(P, reward=sale, horizon=3, initial=0, constraints=[ck.AtMost(kept, 1.6)]), deterministic=True
    )
    assert pure.objective == pytest.approx(1.5, abs=1e-6)
    assert not pure.policy.randomised_states()
    with pytest.raises(ValueError, match="objective_per_step"):
        ck.CMDP(P, reward=sale, horizon=3, objective_per_step=True)


# -- limits on single stages -------------------------------------------------------------------------------------------


def stage_lp(cmdp):
    """The LP over all stages, with limits on single ones."""
    P, costs = parts(cmdp)
    T, S, N = cmdp.horizon, cmdp.states, len(P)
    leave = (np.arange(S)[:, None] == cmdp.pairs.state).astype(float)
    balance = np.kron(np.eye(T), leave) - np.kron(np.eye(T, k=-1), P.T)
    rows = np.zeros((cmdp.num_constraints, T, N))
    for i, c in enumerate(cmdp.constraints):
        rows[i, slice(None) if c.stage is None else c.stage] = costs[i + 1]
    found = linprog(
        np.tile(costs[0], T),
        A_eq=balance,
        b_eq=np.append(cmdp.initial, np.zeros((T - 1) * S)),
        A_ub=rows.reshape(len(rows), -1),
        b_ub=[c.sign * c.limit for c in cmdp.constraints],
    )
    assert found.status in (0, 2), found.message
    return None if found.status == 2 else cmdp.sense * found.fun


@pytest.mark.parametrize("seed", range(40))
def test_limits_on_single_stages(seed):
    rng = np.random.default_rng(seed)
    S, A, T = int(rng.integers(1, 6)), int(rng.integers(1, 4)), int(rng.integers(1, 7))
    P = rng.dirichlet(np.ones(S), size=(S, A))
    c, d = rng.random((2, S, A))
    stages = rng.permutation(T)[:2]
    shared = [ck.AtMost(d, float(rng.uniform(0.3, 0.7)), name=f"d{t}", stage=int(t)) for t in stages]
    whole = ck.AtLeast(d, float(0.3 * T), name="whole")
    cmdp = ck.CMDP(P, reward=c, horizon=T, constraints=[*shared, whole], initial=0)
    optimum, result = stage_lp(cmdp), ck.solve(cmdp)
    if optimum is None:
        assert result.status is ck.Status.INFEASIBLE
        return
    assert result.status is ck.Status.OPTIMAL
    assert result.objective == pytest.approx(optimum, abs=2e-6)
    visits = ck.evaluate(cmdp, result.policy).occupancy
    for i, limit in enumerate(shared):
        assert result.constraint_values[i] == pytest.approx(float((visits[limit.stage] * d).sum()), abs=1e-9)
        assert result.constraint_values[i] <= limit.limit + 1e-6
    other = cmdp.with_limits({"whole": float(0.25 * T)})
    assert ck.solve(other).objective == pytest.approx(stage_lp(other), abs=2e-6)


def test_limits_on_single_stages_are_kept_named_and_checked(tmp_path):
    P, cost = np.ones((1, 2, 1)), np.array([[0.0, 1.0]])
    limits = [ck.AtMost(cost, 0.25, name="dose", stage=2), ck.Between(cost, 0.5, 2.0, name="all")]
    cmdp = ck.CMDP(P, reward=cost, horizon=3, constraints=limits)
    result = ck.solve(cmdp)
    assert result.objective == pytest.approx(2.0, abs=1e-6)
    assert "dose at stage 2" in str(result)
    assert result.to_dict()["constraints"][0]["stage"] == 2
    cmdp.save(tmp_path / "model.npz")
    assert [c.stage for c in ck.CMDP.load(tmp_path / "model.npz").constraints] == [2, None]
    result.save(tmp_path / "result.npz")
    assert str(ck.Result.load(tmp_path / "result.npz")) == str(result)
    bad: dict[str, dict[str, Any]]
    bad = {"stages are 0 to 2": {"horizon": 3, "stage": 3}, "has no stages": {"gamma": 0.9, "stage": 1}}
    bad |= {"not discounted": {"horizon": 3, "gamma": 0.9, "stage": 1}, "at least 0": {"horizon": 3, "stage": -1}}
    for text, more in bad.items():
        limit = ck.AtMost(cost, 1.0, stage=more.pop("stage"))
        with pytest.raises(ValueError, match=text):
            ck.CMDP(P, reward=cost, constraints=[limit], **more)


def test_criteria_can_be_exchanged():
    P = np.zeros((2, 2, 2))
    P[0, 0], P[0, 1], P[1, :] = [0.5, 0.5], [0.0, 1.0], [0.0, 1.0]
    kept = np.array([[1.0, 1.0], [0.0, 0.0]])
    discounted = ck.CMDP(
        P, reward=kept, constraints=[ck.AtMost(kept, 10.0, name="kept")], gamma=0.9, initial=0, action_axis=1
    )
    total, three = discounted.with_criterion(gamma=1), discounted.with_criterion(horizon=3)
    assert ck.solve(total).objective == pytest.approx(2.0, abs=1e-9)
    assert ck.solve(three).objective == pytest.approx(1.75, abs=1e-9)
    assert ck.solve(three.with_criterion(gamma=0.9)).objective == pytest.approx(1.0 / 0.55, abs=1e-6)
    average = three.with_criterion(average=True)
    assert (average.criterion, average.lowering, average.blocks) == ("average", None, None)
    assert ck.solve(average).objective == pytest.approx(0.0, abs=1e-9)
    late = ck.CMDP(P, reward=kept, constraints=[ck.AtMost(kept, 1.0, stage=2)], horizon=3, action_axis=1)
    for other in ({"gamma": 0.9}, {"horizon": 2}, {"average": True}):
        with pytest.raises(ValueError, match="is for stage 2"):
            late.with_criterion(**other)
    with pytest.raises(ValueError, match="a long-run average has no horizon"):
        ck.CMDP(P, reward=kept, horizon=3, average=True, action_axis=1)


@pytest.mark.parametrize("kind", ["the same costs", "other costs at every stage", "a limit on one stage"])
@pytest.mark.parametrize("form", ["sparse", "compiled"])
@pytest.mark.parametrize("limits", [1, 3])
def test_one_sweep_gives_policy_values_and_bound(limits, form, kind, monkeypatch):
    """The fused sweep against a dense solve of the policy it finds, whose Lagrangian no other policy undercuts."""
    if form == "compiled":
        monkeypatch.setattr("cmdpkit.evaluation.backup.COMPILED", 0)
    rng, plain = np.random.default_rng(7), many_stages(states=12, horizon=9)
    costs = rng.random((limits + 1, *((9,) if kind == "other costs at every stage" else ()), 12, 3))
    stage = {"stage": 4} if kind == "a limit on one stage" else {}
    rows = [ck.AtMost(c, 1.0, name=str(i), **(stage if i == 0 else {})) for i, c in enumerate(costs[1:])]
    cmdp = ck.CMDP(plain.transitions, cost=costs[0], constraints=rows, horizon=9)
    model, weights = cmdp.lowering.model, np.append(1.0, rng.random(limits))
    oracle = Oracle(model)
    found = oracle.minimise(weights)
    whole, taken = model.transitions.tocsr().toarray(), model.pairs.rows(found.choice)
    system = np.eye(model.states) - model.gamma * whole[taken]
    assert np.allclose(oracle.state_values, np.linalg.solve(system, model.costs[:, taken].T), rtol=1e-12, atol=1e-13)
    value = oracle.state_values @ weights
    q = weights @ model.costs + model.gamma * whole @ value
    assert (q >= value[model.pairs.state] - 1e-12).all()
    least = float(model.initial @ value) - weights[1:] @ model.offsets
    assert least - 1e-9 <= found.bound <= least
    some = np.sort(rng.choice(model.pairs.count, 20))
    values = rng.random((model.states, limits + 1))
    assert np.allclose(ahead_of(model.transitions, some, values), whole[some] @ values, atol=1e-13)


@pytest.mark.parametrize("seed", range(4))
def test_policies_of_long_horizons_randomise_once_per_limit(seed):
    """Columns of the level method differ in many states; a vertex has as many randomised states as limits."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(10, 0.2), (10, 3))
    costs = rng.random((3, 10, 3))
    cmdp = ck.CMDP(
        P, reward=costs[0], constraints=[ck.AtMost(c, 0.45 * 30) for c in costs[1:]], horizon=30, action_axis=1
    )
    result = ck.solve(cmdp)
    assert result.status is ck.Status.OPTIMAL
    assert len(result.policy.randomised_states()) <= 2
    assert result.objective == pytest.approx(ck.solve(cmdp, "lp").objective, abs=2e-6 * result.objective)
