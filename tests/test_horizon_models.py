"""Finite horizons on hundreds of models, some of which change with time, against an independent LP over all stages."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linprog

import cmdpkit as ck

SEEDS, BLOCKS = 500, 10


class Given:
    """A model as plain arrays: P (T, S, A, S), tables (m + 1, T, S, A) to be limited, and what the user would write."""

    def __init__(self, seed, feasible=True):
        rng = np.random.default_rng(seed)
        self.rng = rng
        S, A, T = int(rng.integers(1, 6)), int(rng.integers(1, 4)), int(rng.integers(1, 8))
        self.S, self.A, self.T = S, A, T
        self.gamma = [1.0, 1.0, 0.9, 0.5, 0.0][int(rng.integers(5))]
        self.moving = bool(rng.random() < 0.5)  # transitions change with time
        P = rng.dirichlet(np.full(S, 0.5), size=(T if self.moving else 1, S, A))
        P = np.where(P < 1e-6, 0.0, P)
        P /= P.sum(axis=3, keepdims=True)
        self.P = np.broadcast_to(P, (T, S, A, S))
        self.available = np.ones((S, A), dtype=bool)
        if rng.random() < 0.4:
            self.available = rng.random((S, A)) < 0.6
            self.available[np.arange(S), rng.integers(A, size=S)] = True
        self.rho = rng.dirichlet(np.ones(S))
        self.maximise = bool(rng.random() < 0.5)
        m = int(rng.integers(0, 4))
        self.changing = rng.random(m + 1) < 0.4  # tables that change with time
        tables = rng.normal(size=(m + 1, T, S, A)) * 10.0 ** rng.integers(-1, 2, size=(m + 1, 1, 1, 1))
        self.tables = np.where(self.changing[:, None, None, None], tables, tables[:, :1])
        self.stages = [int(rng.integers(T)) if self.gamma == 1.0 and rng.random() < 0.2 else None for _ in range(m)]
        self.at_least = rng.random(m) < 0.5
        x = self.visits()
        self.limits = []
        for table, stage, at_least in zip(self.tables[1:], self.stages, self.at_least, strict=True):
            value = float((x * table)[slice(None) if stage is None else stage].sum())
            margin = rng.uniform(0.0, 0.05) * np.abs(table).max()
            self.limits.append(value - margin if at_least else value + margin)
        if not feasible:  # more steps than there are
            self.tables = np.concatenate([self.tables, np.ones((1, T, S, A))])
            self.changing, self.stages = np.append(self.changing, False), [*self.stages, None]
            self.at_least, self.limits = np.append(self.at_least, True), [*self.limits, 1.01 * float(x.sum())]

    def visits(self):
        """Of a random policy, discounted."""
        x, now = np.zeros((self.T, self.S, self.A)), self.rho
        for t in range(self.T):
            pi = self.rng.random((self.S, self.A)) * self.available
            pi /= pi.sum(axis=1, keepdims=True)
            x[t] = now[:, None] * pi
            now = self.gamma * np.einsum("sa,sat->t", x[t], self.P[t])
        return x

    def model(self):
        rng = self.rng
        given = self.P if self.moving else self.P[0]
        if rng.random() < 0.5:
            flat = self.P.reshape(self.T, self.S * self.A, self.S)
            given = [sp.csr_array(part) for part in flat] if self.moving else sp.csr_array(flat[0])
        tables = [list(t) if changing else t[0] for t, changing in zip(self.tables, self.changing, strict=True)]
        limits = [
            (ck.AtLeast if at_least else ck.AtMost)(table, limit, stage=stage)
            for table, limit, stage, at_least in zip(tables[1:], self.limits, self.stages, self.at_least, strict=True)
        ]
        return ck.CMDP(
            given,
            constraints=limits,
            horizon=self.T,
            gamma=self.gamma,
            initial=self.rho,
            available=self.available,
            action_axis=1,
            **{"reward" if self.maximise else "cost": tables[0]},
        )

    def lp(self):
        """The LP over the visits x(t, s, a), written from the arrays; None if it has no solution."""
        T, S, A = self.T, self.S, self.A
        balance = np.zeros((T, S, T, S, A))
        for t in range(T):
            for s in range(S):
                balance[t, s, t, s] = 1.0
            if t:
                balance[t, :, t - 1] -= self.gamma * np.moveaxis(self.P[t - 1], 2, 0)
        right = np.zeros((T, S))
        right[0] = self.rho
        rows, ends = [], []
        for table, limit, stage, at_least in zip(self.tables[1:], self.limits, self.stages, self.at_least, strict=True):
            counted = np.zeros_like(table)
            counted[slice(None) if stage is None else stage] = table[slice(None) if stage is None else stage]
            sign = -1.0 if at_least else 1.0
            rows.append(sign * counted.ravel())
            ends.append(sign * limit)
        sense = -1.0 if self.maximise else 1.0
        upper = np.where(np.broadcast_to(self.available, (T, S, A)), np.inf, 0.0).ravel()
        found = linprog(
            sense * self.tables[0].ravel(),
            A_eq=balance.reshape(T * S, -1),
            b_eq=right.ravel(),
            bounds=np.stack([np.zeros(upper.size), upper], axis=1),
            method="highs",
            **({"A_ub": np.array(rows), "b_ub": ends} if rows else {}),
        )
        assert found.status in (0, 2), found.message
        return None if found.status == 2 else sense * found.fun


@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_answers_are_those_of_an_independent_lp(block):
    for seed in range(block, SEEDS, BLOCKS):
        given = Given(seed, feasible=seed % 7 != 3)
        cmdp, optimum = given.model(), given.lp()
        others = {0: ["columns"], 1: ["lp"], 2: ["pmd-pd"] * (optimum is not None)}
        for method in ["auto", *others.get(seed // BLOCKS % 6, [])]:
            result = ck.solve(cmdp, method)
            if optimum is None:
                assert result.status is ck.Status.INFEASIBLE, (seed, method)
                assert result.certificate.infeasibility_margin > 0.0
                continue
            assert result.status is ck.Status.OPTIMAL, (seed, method, result.message)
            assert abs(result.objective - optimum) <= 2e-6 * max(1.0, abs(optimum)), (seed, method)
            assert result.policy.horizon == given.T


# -- models that change with time --------------------------------------------------------------------------------------


def changing():
    return next(g for g in map(Given, range(100)) if g.moving and g.T > 3 and g.changing.any() and len(g.limits) == 2)


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_values_and_visits_are_those_of_the_stages(seed):
    given = Given(seed)
    cmdp, rng = given.model(), np.random.default_rng(seed)
    pi = np.where(given.available, rng.random((given.T, given.S, given.A)), 0.0)
    pi /= pi.sum(axis=2, keepdims=True)
    found = ck.evaluate(cmdp, ck.StagedPolicy(pi))
    x, now = np.zeros(pi.shape), given.rho
    for t in range(given.T):
        x[t] = now[:, None] * pi[t]
        now = given.gamma * np.einsum("sa,sat->t", x[t], given.P[t])
    np.testing.assert_allclose(found.occupancy, x, atol=1e-12)
    sums = (x * given.tables).sum(axis=(2, 3))
    values = [s.sum() if stage is None else s[stage] for s, stage in zip(sums, [None, *given.stages], strict=True)]
    np.testing.assert_allclose([found.objective, *found.constraint_values], values, atol=1e-9)


def test_they_are_kept_in_files_and_copies(tmp_path):
    given = changing()
    for part in (given.model(), given.model()):  # dense and sparse, or both the same: the generator draws
        part.save(tmp_path / "model.npz")
        result = ck.solve(part)
        again = ck.CMDP.load(tmp_path / "model.npz")
        twins = [again, copy.deepcopy(part), pickle.loads(pickle.dumps(part))]
        for twin in twins:
            assert twin.changes_with_time
            assert ck.solve(twin).objective == result.objective
    one = ck.CMDP([sp.eye_array(2)] * 3, cost=[np.ones((2, 1))] * 3, horizon=3)
    one.save(tmp_path / "one.npz")
    again = ck.CMDP.load(tmp_path / "one.npz")
    assert all(m is again.transitions[0] for m in again.transitions)


def test_the_same_at_all_stages_is_the_same_model():
    rng = np.random.default_rng(0)
    P, cost, used = rng.dirichlet(np.ones(4), (4, 3)), rng.random((4, 3)), rng.random((4, 3))
    plain = ck.CMDP(P, cost=cost, constraints=[ck.AtMost(used, 2.0, name="used")], horizon=5)
    for form in (np.stack([P] * 5), [P] * 5, [sp.csr_array(P.reshape(12, 4))] * 5, [P.copy() for _ in range(5)]):
        tables = {"cost": np.stack([cost] * 5), "constraints": [ck.AtMost(np.stack([used] * 5), 2.0, name="used")]}
        same = ck.CMDP(form, horizon=5, **tables)
        assert ck.solve(same).objective == pytest.approx(ck.solve(plain).objective, rel=1e-9)
        assert same.with_limits(used=2.1).changes_with_time
        with pytest.raises(ValueError, match="its horizon must be 5"):
            same.with_criterion(gamma=0.9)
        with pytest.raises(ValueError, match="has no stages"):
            same.to_table()
        with pytest.raises(ValueError, match="has no stages"):
            same.to_drn("model.drn")
    dearer = plain.with_objective(cost=[cost * (1 + t) for t in range(5)])
    assert dearer.changes_with_time
    assert ck.solve(dearer).objective > ck.solve(plain).objective


def test_a_cost_of_the_next_state_is_expected_at_every_stage():
    rng = np.random.default_rng(1)
    P, reached = rng.dirichlet(np.ones(3), (4, 3, 2)), rng.random((3, 2, 3))
    each = [np.einsum("sat,sat->sa", part, reached) for part in P]
    pi = np.full((3, 2), 0.5)
    one, other = (ck.evaluate(ck.CMDP(P, cost=c, horizon=4), pi) for c in (reached, each))
    assert one.objective == pytest.approx(other.objective, rel=1e-13)
    moving = rng.random((4, 3, 2, 3))
    each = [np.einsum("sat,sat->sa", *both) for both in zip(P, moving, strict=True)]
    one, other = (ck.evaluate(ck.CMDP(P, cost=c, horizon=4), pi) for c in (moving, each))
    assert one.objective == pytest.approx(other.objective, rel=1e-13)


LEVEL = np.full((2, 2, 2), 0.5)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"transitions": [LEVEL] * 3, "cost": np.ones((2, 2)), "gamma": 0.9}, "that needs horizon=3"),
        ({"transitions": [LEVEL] * 3, "cost": np.ones((2, 2)), "horizon": 4}, "for 3 stages, but the horizon is 4"),
        ({"transitions": LEVEL, "cost": np.ones((3, 2, 2)), "gamma": 0.9}, "that needs horizon=3"),
        ({"transitions": LEVEL, "cost": np.ones((3, 2, 2)), "horizon": 4}, "for 3 stages, but the horizon is 4"),
        ({"transitions": LEVEL, "cost": np.ones((2, 2, 2)), "horizon": 2}, "give a list of arrays, one for each stage"),
        ({"transitions": [LEVEL, 2 * LEVEL], "cost": np.ones((2, 2)), "horizon": 2}, "at stage 1, the probabilities"),
        ({"transitions": [LEVEL, LEVEL[:, :1]], "cost": np.ones((2, 2)), "horizon": 2}, "stage 1 has other states"),
        (
            {"transitions": LEVEL, "cost": [np.ones((2, 2)), np.full((2, 2), np.nan)], "horizon": 2},
            "cost at stage 1 of state 0",
        ),
        ({"transitions": [LEVEL, np.ones((2, 2))], "cost": np.ones((2, 2)), "horizon": 2}, "transitions"),
    ],
)
def test_wrong_stages_are_refused(arguments, text):
    with pytest.raises((ValueError, TypeError), match=text):
        ck.CMDP(action_axis=1, **arguments)


def test_a_list_leaves_no_doubt():
    cost = [np.ones((2, 2)), np.zeros((2, 2))]
    assert ck.solve(ck.CMDP(LEVEL, cost=cost, horizon=2, action_axis=1)).objective == pytest.approx(1.0)


# -- degenerate models -------------------------------------------------------------------------------------------------


def plain(limits=(), T=4, reward=None, gamma=1.0, S=3, A=2, seed=0, **more):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(S), (S, A))
    table = rng.random((S, A)) if reward is None else reward
    return ck.CMDP(P, reward=table, constraints=limits, horizon=T, gamma=gamma, initial=0, action_axis=1, **more)


USED = np.random.default_rng(7).random((3, 2))
LEAST = ck.solve(plain().with_objective(cost=USED), tol=1e-12).objective
AT_OPTIMUM = ck.evaluate(plain(), ck.solve(plain(), tol=1e-12).policy.probabilities)
USED_THERE = float((AT_OPTIMUM.occupancy * USED).sum())
UNREACHED = np.zeros((3, 2, 3))
UNREACHED[0, :, 0] = UNREACHED[1, :, 1] = UNREACHED[2, :, 0] = 1.0

DEGENERATE = {
    "no limits": lambda: plain(),
    "one state": lambda: plain([ck.AtMost([[0.0, 1.0]], 1.5)], S=1),
    "one action": lambda: plain([ck.AtMost(np.ones((3, 1)), 4.0)], A=1),
    "one step": lambda: plain([ck.AtMost(USED, float(USED[0].mean()))], T=1),
    "gamma zero": lambda: plain([ck.AtMost(USED, float(USED[0].mean()))], gamma=0.0),
    "unreachable states": lambda: ck.CMDP(
        UNREACHED, reward=USED, constraints=[ck.AtMost(1.0 - USED, 1.0)], horizon=3, initial=0, action_axis=1
    ),
    "unavailable actions": lambda: plain(
        [ck.AtMost(USED, LEAST + 1.01)], available=np.array([[True, True], [True, False], [False, True]])
    ),
    "limits twice, and redundant ones": lambda: plain(
        [
            ck.AtMost(USED, LEAST + 0.1),
            ck.AtMost(USED, LEAST + 0.1),
            ck.AtMost(2 * USED, 2 * LEAST + 0.2),
            ck.AtLeast(USED, -5),
            ck.AtMost(USED, 1e6),
        ]
    ),
    "equality": lambda: plain([ck.Equal(USED, LEAST + 0.2)]),
    "between": lambda: plain([ck.Between(USED, LEAST + 0.1, LEAST + 0.2)]),
    "no Slater point": lambda: plain([ck.AtMost(USED, LEAST)]),
    "limit at the optimum's own value": lambda: plain([ck.AtMost(USED, USED_THERE)]),
    "constant cost on its limit": lambda: plain([ck.AtMost(np.ones((3, 2)), 4.0)]),
    "zero cost": lambda: plain([ck.AtMost(np.zeros((3, 2)), 0.0)]),
    "zero reward": lambda: plain([ck.AtMost(USED, LEAST + 0.1)], reward=np.zeros((3, 2))),
    "ties everywhere": lambda: plain([ck.AtMost(np.tile([[1.0, 0.0]], (3, 1)), 1.5)], reward=np.ones((3, 2))),
    "a limit on every stage": lambda: plain([ck.AtMost(USED, 0.66, name=f"{t}", stage=t) for t in range(4)]),
    "large and small costs": lambda: plain(
        [ck.AtMost(1e6 * USED, 1e6 * LEAST + 1e5)], reward=1e-6 * np.arange(6.0).reshape(3, 2)
    ),
}


def expanded_optimum(cmdp):
    """HiGHS on the LP over all stages, from the model's tables."""
    T, N, S = cmdp.horizon, cmdp.pairs.count, cmdp.states
    P = np.asarray(cmdp.transitions)
    leave = (np.arange(S)[:, None] == cmdp.pairs.state).astype(float)
    balance = np.kron(np.eye(T), leave) - np.kron(np.eye(T, k=-1), cmdp.gamma * P.T)
    rows, ends = [], []
    for c in cmdp.rows:
        counted = np.zeros((T, N))
        counted[slice(None) if c.stage is None else c.stage] = np.ravel(c.values)
        scale = max(np.abs(counted).max(), 1e-300)
        rows.append(c.sign * counted.ravel() / scale)
        ends.append(c.sign * c.limit / scale)
    size = max(np.abs(cmdp.objective).max(), 1e-300)
    found = linprog(
        cmdp.sense * np.tile(cmdp.objective.ravel(), T) / size,
        A_eq=balance,
        b_eq=np.append(cmdp.initial, np.zeros((T - 1) * S)),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        **({"A_ub": np.array(rows), "b_ub": ends} if rows else {}),
    )
    assert found.status in (0, 2)
    return None if found.status == 2 else cmdp.sense * found.fun * size


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_models(name):
    cmdp = DEGENERATE[name]()
    optimum = expanded_optimum(cmdp)
    for method in ("auto", "columns", "lp", "pmd-pd"):
        result = ck.solve(cmdp, method)
        assert result.status is ck.Status.OPTIMAL, (method, result.message)
        assert abs(result.objective - optimum) <= 2e-6 * max(1.0, abs(optimum)), method


@pytest.mark.parametrize("method", ["auto", "columns", "lp"])
@pytest.mark.parametrize("gap", [1e-9, 1e-3, 10.0])
def test_what_is_out_of_reach_is_refuted(method, gap):
    result = ck.solve(plain([ck.AtMost(USED, LEAST - gap)]), method)
    assert result.status is ck.Status.INFEASIBLE
    assert 0.0 < result.certificate.infeasibility_margin < 1.1 * gap


@pytest.mark.parametrize("horizon", [10**10, 10**30])
def test_a_horizon_that_no_memory_holds_is_refused(horizon):
    with pytest.raises(ValueError, match="pairs of state and action, one of each for every stage"):
        ck.CMDP(np.ones((1, 2, 1)), reward=[[0.0, 1.0]], horizon=horizon)
