"""Totals until a goal (gamma = 1): against an independent LP, exact fractions and closed forms."""

import copy
import pickle
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linprog

import cmdpkit as ck
from cmdpkit.certificates.checker import values_with_errors
from cmdpkit.evaluation.bounds import local_bound, macqueen_bound, row_sum_range
from cmdpkit.exact.mdp import minimise, polished_bound
from cmdpkit.model.absorbing import absorbed_states
from rational import Exact

SEEDS = 500


def absorbing(seed, feasible=True, states=None, actions=None, m=None):
    """A model whose every action leads nearer to a goal with some probability; goals may be loops that cost nothing."""
    rng = np.random.default_rng(seed)
    G = int(rng.integers(1, 4))  # the first G states are the goals
    S, A = G + (int(rng.integers(1, 15)) if states is None else states), actions or int(rng.integers(1, 5))
    P = np.zeros((S, A, S))
    nearer = rng.choice([0.02, 0.1, 0.5, 1.0], size=(S, A))
    for s in range(S):
        for a in range(A):
            if s < G:
                P[s, a, rng.integers(G)] = 1.0
                continue
            spread = rng.dirichlet(np.full(S, 0.3))
            P[s, a] = (1.0 - nearer[s, a]) * np.where(spread < 1e-6, 0.0, spread)
            P[s, a, rng.integers(s)] += 1.0 - P[s, a].sum()
    m = int(rng.integers(0, 5)) if m is None else m
    tables = rng.normal(size=(m + 1, S, A)) * 10.0 ** rng.integers(-1, 2, size=(m + 1, 1, 1))
    tables[:, :G] = 0.0
    tables[:, rng.random(S) < 0.15] = 0.0  # a state that costs nothing but is left
    available = np.ones((S, A), dtype=bool)
    if rng.random() < 0.4:
        available = rng.random((S, A)) < 0.6
        available[np.arange(S), rng.integers(A, size=S)] = True
    rho = rng.dirichlet(np.ones(S))
    pi = rng.random((S, A)) * available
    pi /= pi.sum(axis=1, keepdims=True)
    chain = np.einsum("sa,sat->st", pi, P)[G:, G:]
    visits = np.linalg.solve(np.eye(S - G) - chain.T, rho[G:])[:, None] * pi[G:]
    limits = []
    for table in tables[1:]:
        value = float((visits * table[G:]).sum())
        margin = rng.uniform(0.0, 0.05) * np.abs(table).max() * visits.sum()
        at_least = bool(rng.random() < 0.5)
        limits.append((ck.AtLeast if at_least else ck.AtMost)(table, value - margin if at_least else value + margin))
    if not feasible:
        steps = np.where(np.arange(S) < G, 0.0, 1.0)[:, None] * np.ones(A)
        limits.append(ck.AtMost(steps, 0.99 * float(rho[G:].sum()), name="hurry"))  # one step is needed from most
    if rng.random() < 0.5:
        P = sp.csr_array(P.reshape(S * A, S))
    kind = "reward" if rng.random() < 0.5 else "cost"
    return ck.CMDP(P, constraints=limits, gamma=1, initial=rho, available=available, **{kind: tables[0]})


def parts(cmdp):
    """P, costs and limits as the LP wants them, made of what the user gave."""
    P = cmdp.transitions.toarray() if sp.issparse(cmdp.transitions) else np.asarray(cmdp.transitions)
    sense = -1.0 if cmdp.maximise else 1.0
    costs = [sense * cmdp.objective.ravel()] + [c.sign * np.ravel(c.values) for c in cmdp.constraints]
    return P, np.array(costs), np.array([c.sign * c.limit for c in cmdp.constraints])


def goals_of(P, costs, state, S):
    """The states from which no cost can be reached, by brute force."""
    can = np.zeros(S, dtype=bool)
    np.logical_or.at(can, state, (costs != 0.0).any(axis=0))
    for _ in range(S):
        np.logical_or.at(can, state, (P[:, can] > 0.0).any(axis=1))
    return ~can


def lp(cmdp):
    """The LP over expected visits of the states that are not absorbed, with gamma = 1."""
    P, costs, limits = parts(cmdp)
    state = cmdp.pairs.state
    goal = goals_of(P, costs, state, cmdp.states)
    rows, inside = ~goal[state], np.flatnonzero(~goal)
    if not inside.size:
        return 0.0, goal
    balance = (inside[:, None] == state[rows]).astype(float) - P[rows][:, inside].T
    limits_too = {"A_ub": costs[1:, rows], "b_ub": limits} if len(limits) else {}
    found = linprog(costs[0, rows], A_eq=balance, b_eq=cmdp.initial[inside], method="highs", **limits_too)
    assert found.status in (0, 2), found.message
    return (None if found.status == 2 else cmdp.sense * found.fun), goal


def close(x, y, tol=2e-6):
    return abs(x - y) <= tol * max(1.0, abs(y))


@pytest.mark.parametrize("block", range(10))
def test_the_answers_are_those_of_an_independent_lp(block):
    for seed in range(block, SEEDS, 10):
        cmdp = absorbing(seed, feasible=seed % 7 != 3)
        optimum, goal = lp(cmdp)
        assert (absorbed_states(cmdp.transitions, cmdp.pairs, cmdp.costs) == goal).all()
        methods = ["auto"] + ["columns", "lp", "pmd-pd"] * (seed % 6 == 0)
        for method in methods if optimum is not None else ["auto", "columns", "lp"]:
            result = ck.solve(cmdp, method)
            if optimum is None:
                assert result.status is ck.Status.INFEASIBLE, (seed, method)
                assert result.certificate.infeasibility_margin > 0.0
                continue
            assert result.status is ck.Status.OPTIMAL, (seed, method, result.message)
            assert close(result.objective, optimum), (seed, method)
            assert result.certificate.optimal(1e-6)
            assert result.model is cmdp
        if optimum is not None:
            bound = cmdp.sense * (ck.certify(cmdp, result.policy).bound - optimum)
            assert bound <= 1e-8 * max(1.0, abs(optimum)), seed
            assert bound >= -1e-6 * max(1.0, abs(optimum)), seed


@pytest.mark.parametrize("seed", range(60))
def test_values_and_visits_are_those_of_the_chain(seed):
    cmdp = absorbing(seed)
    P, costs, _ = parts(cmdp)
    goal = goals_of(P, costs, cmdp.pairs.state, cmdp.states)
    rng = np.random.default_rng(seed)
    pi = np.where(cmdp.pairs.mask, rng.random((cmdp.states, cmdp.actions)), 0.0)
    pi /= pi.sum(axis=1, keepdims=True)
    found = ck.evaluate(cmdp, pi)
    flat = cmdp.pairs.taken(pi).ravel()
    inside = np.flatnonzero(~goal)
    chain, cost = np.zeros((cmdp.states, cmdp.states)), np.zeros((len(costs), cmdp.states))
    np.add.at(chain, cmdp.pairs.state, flat[:, None] * P)
    signs = np.append(cmdp.sense, cmdp.signs)[:, None]
    np.add.at(cost.T, cmdp.pairs.state, (flat * costs * signs).T)
    V = np.zeros_like(cost)
    inner = np.eye(inside.size) - chain[np.ix_(inside, inside)]
    V[:, inside] = np.linalg.solve(inner, cost[:, inside].T).T
    x = np.zeros(cmdp.states)
    x[inside] = np.linalg.solve(inner.T, cmdp.initial[inside])
    assert np.allclose(found.state_values, V, rtol=1e-9, atol=1e-9)
    q = signs * costs + V @ P.T
    assert np.allclose(np.where(cmdp.pairs.mask, found.action_values, 0.0), [cmdp.pairs.table(v, 0.0) for v in q])
    assert np.allclose(found.occupancy, x[:, None] * pi, rtol=1e-9, atol=1e-12)
    assert np.isclose(found.objective, cmdp.initial @ V[0], atol=1e-9)
    assert np.allclose(found.constraint_values, V[1:] @ cmdp.initial, atol=1e-9)


class ExactTotal(Exact):
    """Exact totals: absorbed states are worth nothing."""

    def __init__(self, cmdp):
        super().__init__(cmdp)
        P, costs, _ = parts(cmdp)
        goal = goals_of(P, costs, cmdp.pairs.state, cmdp.states)
        self.P = [[Fraction(0)] * cmdp.states if goal[k // self.actions] else row for k, row in enumerate(self.P)]


def awkward(seed):
    """Few states, all actions, and probabilities of absorption down to 1e-7; row sums that are off by up to 1e-8."""
    rng = np.random.default_rng(seed)
    S, A, m = int(rng.integers(1, 4)), int(rng.integers(1, 3)), int(rng.integers(0, 3))
    leave = 10.0 ** rng.uniform(-7.0, 0.0) if seed % 3 else 1.0 / 3.0
    P = np.zeros((S + 1, A, S + 1))
    P[0, :, 0] = 1.0
    P[1:, :, 1:] = (1.0 - leave) * rng.dirichlet(np.ones(S), size=(S, A))
    P[1:, :, 0] = 1.0 - P[1:, :, 1:].sum(axis=-1)
    P *= 1.0 + rng.uniform(-1.0, 1.0, size=(S + 1, A, 1)) * (min(9e-9, 0.1 * leave) if seed % 4 == 1 else 0.0)
    tables = rng.uniform(-1.0, 1.0, size=(m + 1, S + 1, A)) * 10.0 ** rng.integers(-6, 7, size=(m + 1, 1, 1))
    tables[:, 0] = 0.0
    limits = [(ck.AtMost if rng.random() < 0.5 else ck.AtLeast)(t, float(t.mean() / leave)) for t in tables[1:]]
    return ck.CMDP(P, cost=tables[0], constraints=limits, gamma=1, initial=rng.dirichlet(np.ones(S + 1)))


@pytest.mark.parametrize("block", range(5))
def test_bounds_hold_in_exact_arithmetic(block):
    for seed in range(block, 150, 5):
        cmdp, rng = awkward(seed), np.random.default_rng(seed + 1000)
        exact, model = ExactTotal(cmdp), cmdp.lowering.model
        weights = np.append(rng.choice([0.0, 1.0]), rng.exponential(size=cmdp.num_constraints))
        least = exact.minimum(weights)
        assert minimise(model, weights).bound <= least, seed
        assert polished_bound(model, weights) <= least, seed
        for size in (0.0, 1e-6, 1.0, 1e6):
            guess = size * rng.normal(size=cmdp.states)
            assert macqueen_bound(model, weights, guess) <= least, seed
            assert local_bound(model, weights, guess) <= least, seed
        policy = ck.TabularPolicy(rng.dirichlet(np.ones(cmdp.actions), size=cmdp.states))
        values, errors = values_with_errors(model, policy)
        truth = exact.values(exact.normalised(policy))
        for i, (value, error, true) in enumerate(zip(values, errors, truth, strict=True)):
            assert abs(Fraction(float(value)) - true - exact.offsets[i]) <= Fraction(float(error)), seed


def test_the_bound_is_tight_where_it_can_be():
    for seed in range(3, 60, 3):
        cmdp = awkward(seed)  # absorbed within a few steps
        weights = np.ones(cmdp.num_constraints + 1)
        least = float(ExactTotal(cmdp).minimum(weights))
        bound = minimise(cmdp.lowering.model, weights).bound
        assert least - bound <= 1e-11 * (abs(least) + float(np.abs(cmdp.offsets).sum() + cmdp.cost_sizes.sum()))


@pytest.mark.parametrize("seed", range(20))
def test_the_entries_of_the_discounted_model_are_off_by_few_roundings(seed):
    cmdp = awkward(seed)
    model, sizes = cmdp.lowering
    live = np.flatnonzero(sizes)
    size, beta = [Fraction(float(x)) for x in sizes], Fraction(model.gamma)
    allowed = Fraction(model.entry_error) * Fraction(float(np.finfo(float).eps))
    P, Q = (np.asarray(m.transitions).reshape(cmdp.states, cmdp.actions, -1) for m in (cmdp, model))
    own = [cmdp.objective, *(np.asarray(c.values) for c in cmdp.constraints)]
    new = [model.objective, *(np.asarray(c.values) for c in model.constraints)]
    for s in live:
        for a in range(cmdp.actions):
            for t in live:
                exact = Fraction(float(P[s, a, t])) * size[t] / (beta * size[s])
                assert abs(Fraction(float(Q[s, a, t])) - exact) <= allowed * exact
            for before, after in zip(own, new, strict=True):
                exact = Fraction(float(before[s, a])) / size[s]
                assert abs(Fraction(float(after[s, a])) - exact) <= allowed * abs(exact)
    assert np.allclose(model.initial[live] / sizes[live], cmdp.initial[live], rtol=1e-15)


def test_bounds_count_the_error_of_the_entries():
    cmdp = awkward(6)
    model = cmdp.lowering.model
    plain = ck.CMDP(
        model.transitions.reshape(cmdp.states, cmdp.actions, -1),
        cost=model.objective,
        constraints=model.constraints,
        gamma=model.gamma,
        initial=model.initial,
    )
    (low, high), (least, most) = row_sum_range(plain), row_sum_range(model)
    assert least < low < high < most
    weights, guess = np.ones(cmdp.num_constraints + 1), np.ones(cmdp.states)
    assert macqueen_bound(model, weights, guess) < macqueen_bound(plain, weights, guess)
    assert local_bound(model, weights, guess) < local_bound(plain, weights, guess)
    policy = ck.TabularPolicy.uniform(cmdp.states, cmdp.actions)
    assert (values_with_errors(model, policy)[1] > values_with_errors(plain, policy)[1]).all()
    assert type(model.tightened(0.1)) is type(model.balanced()[0]) is type(model)


# -- degenerate models -----------------------------------------------------------------------------------------------


def plain(limits=(), reward=None, S=3, A=2, **more):
    """S states and a goal, the last state, which is reached with 0.2 at least in every step."""
    rng = np.random.default_rng(0)
    P = np.zeros((S + 1, A, S + 1))
    P[:S, :, :S], P[:S, :, S] = 0.8 * rng.dirichlet(np.ones(S), (S, A)), 0.2
    P[S, :, S] = 1.0
    table = np.zeros((S + 1, A))
    table[:S] = rng.random((S, A)) if reward is None else reward
    return ck.CMDP(P, reward=table, constraints=limits, gamma=1, action_axis=1, **({"initial": 0} | more))


def open_table(values):
    return np.vstack([values, np.zeros((1, np.shape(values)[1]))])


USED = open_table(np.random.default_rng(7).random((3, 2)))
STEPS = open_table(np.ones((3, 2)))
LEAST = ck.solve(plain().with_objective(cost=USED), tol=1e-12).objective
USED_THERE = float((ck.evaluate(plain(), ck.solve(plain(), tol=1e-12).policy).occupancy * USED).sum())
CERTAIN = np.zeros((3, 2, 3))
CERTAIN[0, 0, 1] = CERTAIN[0, 1, 2] = CERTAIN[1, :, 2] = CERTAIN[2, :, 2] = 1.0
LONELY = np.zeros((3, 2, 3))
LONELY[0, :, 2] = LONELY[1, :, 0] = LONELY[2, :, 2] = 1.0

DEGENERATE = {
    "no limits": lambda: plain(),
    "one state": lambda: plain([ck.AtMost(open_table([[0.0, 1.0]]), 2.0)], S=1),
    "one action": lambda: plain([ck.AtMost(open_table(np.ones((3, 1))), 5.0)], A=1),
    "deterministic": lambda: ck.CMDP(
        CERTAIN, cost=[[1, 4], [2, 3], [0, 0]], constraints=[ck.AtMost([[1, 1], [1, 1], [0, 0]], 1.5)], gamma=1,
        initial=0, action_axis=1,
    ),
    "unreachable states": lambda: ck.CMDP(
        LONELY, cost=[[2, 1], [1, 1], [0, 0]], constraints=[ck.AtMost([[0, 1], [9, 9], [0, 0]], 0.5)], gamma=1,
        initial=0, action_axis=1,
    ),
    "start at the goal": lambda: plain([ck.AtMost(USED, 0.0)], initial=3),
    "unavailable actions": lambda: plain(
        [ck.AtMost(USED, LEAST + 1.0)], available=np.array([[True, True], [True, False], [True, True], [False, True]])
    ),
    "limits twice, and redundant ones": lambda: plain(
        [ck.AtMost(USED, LEAST + 0.1), ck.AtMost(USED, LEAST + 0.1), ck.AtMost(2 * USED, 2 * LEAST + 0.2),
         ck.AtLeast(USED, -5), ck.AtMost(USED, 1e6)]
    ),
    "equality": lambda: plain([ck.Equal(USED, LEAST + 0.2)]),
    "between": lambda: plain([ck.Between(USED, LEAST + 0.1, LEAST + 0.2)]),
    "no Slater point": lambda: plain([ck.AtMost(USED, LEAST)]),
    "limit at the optimum's own value": lambda: plain([ck.AtMost(USED, USED_THERE)]),
    "constant cost on its limit": lambda: plain([ck.AtMost(STEPS, 5.0)]),
    "zero cost": lambda: plain([ck.AtMost(0.0 * STEPS, 0.0)]),
    "zero reward": lambda: plain([ck.AtMost(USED, LEAST + 0.1)], reward=np.zeros((3, 2))),
    "ties everywhere": lambda: plain([ck.AtMost(STEPS * [1.0, 0.0], 1.5)], reward=np.ones((3, 2))),
    "several goals": lambda: ruin(6, initial=3, constraints=[ck.AtMost(np.where(np.arange(7) % 6 > 0, 1.0, 0.0), 8.0)]),
    "large and small costs": lambda: plain(
        [ck.AtMost(1e6 * USED, 1e6 * LEAST + 1e5)], reward=1e-6 * np.arange(6.0).reshape(3, 2)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_models(name):
    cmdp = DEGENERATE[name]()
    optimum = lp(cmdp.one_sided)[0]
    for method in ("auto", "columns", "lp", "pmd-pd"):
        result = ck.solve(cmdp, method)
        assert result.status is ck.Status.OPTIMAL, (method, result.message)
        assert close(result.objective, optimum), method


@pytest.mark.parametrize("method", ["auto", "columns", "lp"])
@pytest.mark.parametrize("gap", [1e-9, 1e-3, 10.0])
def test_what_is_out_of_reach_is_refuted(method, gap):
    result = ck.solve(plain([ck.AtMost(USED, LEAST - gap)]), method)
    assert result.status is ck.Status.INFEASIBLE
    assert 0.0 < result.certificate.infeasibility_margin < 1.1 * gap


def ruin(n, bold=0.4, **more):
    """Gambler's ruin: win with 0.5 or, with the other action, with probability `bold`."""
    P = np.zeros((n + 1, 2, n + 1))
    for a, p in enumerate((0.5, bold)):
        P[np.arange(1, n), a, np.arange(2, n + 1)] = p
        P[np.arange(1, n), a, np.arange(n - 1)] = 1.0 - p
    P[[0, n], :, [0, n]] = 1.0
    win = np.zeros((n + 1, 2))
    win[n - 1] = P[n - 1, :, n]
    return ck.CMDP(P, reward=win, gamma=1, **more)


def test_gamblers_ruin_has_its_closed_form():
    n, q = 10, 0.6 / 0.4
    cmdp = ruin(n, initial=4)
    bold = ck.evaluate(cmdp, np.tile([0.0, 1.0], (n + 1, 1)))
    k = np.arange(n + 1)
    wins = np.where(k < n, (1.0 - q**k) / (1.0 - q**n), 0.0)  # at the goal there is nothing more to win
    assert np.allclose(bold.state_values[0], wins, atol=1e-13)
    fair = ck.evaluate(cmdp, np.tile([1.0, 0.0], (n + 1, 1)))
    assert np.isclose(fair.objective, 0.4, atol=1e-13)
    assert np.isclose(fair.occupancy.sum(), 4 * 6, atol=1e-11)  # the expected duration of the fair game
    assert np.isclose(ck.solve(cmdp).objective, 0.4, atol=1e-12)


def test_a_limit_on_the_time_mixes_the_games():
    n = 10
    steps = np.where((np.arange(n + 1) % n > 0)[:, None], 1.0, 0.0) * np.ones(2)
    free = ck.solve(ruin(n, initial=4))
    short = ck.solve(ruin(n, initial=4, constraints=[ck.AtMost(steps, 20.0, name="time")]))
    assert short.status is ck.Status.OPTIMAL
    assert np.isclose(short.constraint_values[0], 20.0, atol=1e-6)
    assert short.objective < free.objective
    assert short.multipliers[0] > 0.0
    text = str(short)
    assert "expected total until the end" in text
    assert "discounted" not in text


def test_long_walks_have_their_closed_form():
    """A symmetric walk between 0 and n: from k it takes k (n − k) steps, up to 250,000 here."""
    n = 1000
    move = sp.diags_array([np.full(n, 0.5), np.full(n, 0.5)], offsets=[-1, 1], shape=(n + 1, n + 1)).tolil()
    move[0], move[n] = 0.0, 0.0
    move[0, 0] = move[n, n] = 1.0
    cost = np.where(np.arange(n + 1) % n > 0, 1.0, 0.0)[:, None]
    cmdp = ck.CMDP(move.tocsr(), cost=cost, gamma=1, initial=n // 2)
    result = ck.solve(cmdp)
    assert result.status is ck.Status.OPTIMAL
    assert np.isclose(result.objective, n * n / 4, rtol=1e-9)


def test_every_state_may_be_a_goal():
    cmdp = ck.CMDP(np.ones((1, 2, 1)), cost=np.zeros((1, 2)), gamma=1)
    result = ck.solve(cmdp)
    assert (result.status, result.objective) == (ck.Status.OPTIMAL, 0.0)
    hopeless = ck.CMDP(
        np.ones((1, 2, 1)), cost=np.zeros((1, 2)), gamma=1, constraints=[ck.AtLeast(np.zeros((1, 2)), 1.0)]
    )
    assert ck.solve(hopeless).status is ck.Status.INFEASIBLE


def test_one_step_to_the_goal():
    P = np.zeros((2, 2, 2))
    P[:, :, 1] = 1.0
    cmdp = ck.CMDP(P, cost=[[3.0, 2.0], [0.0, 0.0]], gamma=1.0, initial=0)
    assert ck.solve(cmdp).objective == pytest.approx(2.0, abs=1e-12)


# -- refusals --------------------------------------------------------------------------------------------------------


def corridor(**more):
    """0 is the goal; 1 and 2 can go round in circles; 3 leads to 2."""
    P = np.zeros((4, 2, 4))
    P[0, :, 0] = P[1, 0, 0] = P[1, 1, 2] = P[2, :, 1] = P[3, :, 2] = 1.0
    return {"transitions": P, "cost": np.array([[0.0, 0.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]), "gamma": 1, **more}


def test_states_in_which_one_can_stay_are_named():
    with pytest.raises(ValueError, match=r"can stay in states 1, 2 for ever"):
        ck.CMDP(**corridor())
    with pytest.raises(ValueError, match=r"can stay in states 'a', 'b' for ever"):
        ck.CMDP(**corridor(state_labels=["goal", "a", "b", "c"]))
    without = np.ones((4, 2), dtype=bool)
    without[1, 1] = False
    cmdp = ck.CMDP(**corridor(available=without), initial=3)
    assert ck.solve(cmdp).objective == pytest.approx(3.0, abs=1e-10)


def test_a_circle_at_no_cost_is_refused_unless_it_cannot_be_left():
    """In 1 one may stay at no cost or go on: neither absorbed nor certain to end."""
    P = np.zeros((2, 2, 2))
    P[0, :, 0] = P[1, 0, 1] = P[1, 1, 0] = 1.0
    with pytest.raises(ValueError, match="can stay in state 1 for ever"):
        ck.CMDP(P, cost=[[0.0, 0.0], [0.0, 1.0]], gamma=1)


def test_a_model_without_a_goal_is_refused():
    with pytest.raises(ValueError, match="there is no goal"):
        ck.CMDP(np.ones((1, 2, 1)), cost=[[0.0, 1.0]], gamma=1)
    with pytest.raises(ValueError, match=r"can stay in states 0, 1, 2, 3, 4, 5, 6, 7, \.\.\. \(20 states\)"):
        ck.CMDP(np.full((20, 1, 20), 0.05), cost=np.ones(20), gamma=1)


def test_only_a_constraint_may_cost():
    """A state at which a limit counts something is not absorbed."""
    with pytest.raises(ValueError, match="can stay in state 0 for ever"):
        ck.CMDP(np.ones((1, 1, 1)), cost=[[0.0]], gamma=1, constraints=[ck.AtMost([[1.0]], 2.0)])


def test_absorption_that_takes_too_long_is_refused():
    P = np.zeros((2, 1, 2))
    P[0, 0], P[1, 0, 1] = [1.0 - 1e-13, 1e-13], 1.0
    with pytest.raises(ValueError, match=r"from state 0 it can take more than 1e\+12 steps"):
        ck.CMDP(P, cost=[[1.0], [0.0]], gamma=1)
    P[0, 0] = [1.0, 1e-9]  # a row that sums to more than one never loses what it should
    with pytest.raises(ValueError, match="from state 0 it can take more than"):
        ck.CMDP(P, cost=[[1.0], [0.0]], gamma=1)


def test_limits_per_step_and_rollouts_are_refused():
    cmdp = ruin(4)
    with pytest.raises(ValueError, match="per_step=True"):
        ruin(4, constraints=[ck.AtMost(np.zeros((5, 2)), 1.0, per_step=True)])
    with pytest.raises(ValueError, match="has the constants of discounted models"):
        ck.solve(cmdp, sampling=ck.Sampling(schedule="theory", epsilon=0.1))
    with pytest.raises(
        ValueError, match=r"is for discounted models, finite horizons and long-run averages.*with_criterion\(horizon="
    ):
        ck.certify_by_simulation(cmdp, np.full((5, 2), 0.5))
    with pytest.raises(ValueError, match="there is no long run"):
        ck.long_run_averages(cmdp, np.full((5, 2), 0.5))


def test_numbers_at_the_end_of_floating_point_are_refused():
    P = np.zeros((2, 1, 2))
    P[0, 0], P[1, 0, 1] = [0.5, 0.5], 1.0
    with pytest.raises(ValueError, match="too small or too large"):
        ck.CMDP(P, cost=[[1e-300], [0.0]], gamma=1)
    with pytest.raises(ValueError, match="must not exceed"):
        ck.CMDP(P, cost=[[1e150], [0.0]], gamma=1)


# -- files, copies, results ------------------------------------------------------------------------------------------


def test_models_and_results_keep_their_criterion(tmp_path):
    cmdp = absorbing(4)
    cmdp.save(tmp_path / "model.npz")
    again = ck.CMDP.load(tmp_path / "model.npz")
    assert (again.criterion, again.gamma) == ("total", 1.0)
    assert repr(again) == repr(cmdp)
    result = ck.solve(cmdp)
    assert ck.solve(again).objective == result.objective
    result.save(tmp_path / "result.npz")
    loaded = ck.Result.load(tmp_path / "result.npz")
    assert loaded.model.criterion == "total"
    assert str(loaded) == str(result)
    for twin in (copy.deepcopy(cmdp), pickle.loads(pickle.dumps(cmdp))):
        assert ck.solve(twin).objective == result.objective
        with pytest.raises(ValueError, match="read-only"):
            twin.lowering.sizes[0] = 1.0


def test_extreme_units_and_zero_violation():
    big = ruin(6, initial=3, constraints=[ck.AtMost(np.where(np.arange(7) % 6 > 0, 1e80, 0.0), 8e80, name="time")])
    assert ck.solve(big).status is ck.Status.OPTIMAL
    mild = ruin(6, initial=3, constraints=[ck.AtMost(np.where(np.arange(7) % 6 > 0, 1.0, 0.0), 8.0, name="time")])
    assert ck.solve(big).objective == pytest.approx(ck.solve(mild).objective, abs=1e-6)
    safe = ck.solve(mild, "pmd-pd-zero")
    assert safe.certificate.feasible(0.0)
    choices = [np.eye(2)[[0, *choice, 0]] for choice in product((0, 1), repeat=5)]
    least = min(ck.evaluate(mild, policy).constraint_values[0] for policy in choices)
    assert ck.slater_margin(mild) == pytest.approx(8.0 - least, abs=1e-7)
