"""Models of other libraries: Gymnasium, pymdptoolbox's arrays and QuantEcon."""

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import scipy.sparse as sp
from quantecon.markov import DiscreteDP

import cmdpkit as ck
from test_ways_in import assert_same, by_hand, dense

# -- which axis counts the actions -------------------------------------------------------------------------------------


def cube(size=3, seed=0):
    p = np.random.default_rng(seed).random((size, size, size))
    return p / p.sum(axis=2, keepdims=True)


def test_a_cube_is_read_with_a_warning_unless_the_axis_is_said():
    p, r = cube(), np.zeros((3, 3))
    with pytest.warns(UserWarning, match=r"read as \(S, A, S\), but could be meant as \(A, S, S\)") as caught:
        doubtful = ck.CMDP(p, reward=r, gamma=0.9)
    assert caught[0].filename == __file__
    sure = ck.CMDP(p, reward=r, gamma=0.9, action_axis=1)
    first = ck.CMDP(p, reward=r, gamma=0.9, action_axis=0)
    np.testing.assert_array_equal(doubtful.transitions, p.reshape(9, 3))
    np.testing.assert_array_equal(sure.transitions, p.reshape(9, 3))
    np.testing.assert_array_equal(first.transitions, p.swapaxes(0, 1).reshape(9, 3))
    assert_same(ck.CMDP.from_matrices(p, reward=r, gamma=0.9), first)


def test_models_made_of_models_do_not_warn(tmp_path):
    limit = ck.AtMost(np.eye(3), 1.0)
    cmdp = ck.CMDP(cube(), reward=np.eye(3), constraints=[limit], gamma=0.9, action_axis=1)
    cmdp.save(tmp_path / "model.npz")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(ck.CMDP.load(tmp_path / "model.npz"), cmdp)
        cmdp.tightened(0.1)
        cmdp.balanced()
        ck.CMDP(np.ones((1, 1, 1)), reward=[[0.0]], gamma=0.9)
        ck.CMDP(np.full((2, 2, 2), 0.5), reward=np.eye(2), gamma=0.9)  # the same either way


def test_a_wrong_axis_is_refused():
    p = np.full((2, 3, 3), 1 / 3)
    with pytest.raises(ValueError, match=r"shape \(2, 3, 3\); they need shape \(S, A, S\).*pass action_axis=0"):
        ck.CMDP(p, reward=np.zeros((3, 2)), gamma=0.9)
    assert ck.CMDP(p, reward=np.zeros((3, 2)), gamma=0.9, action_axis=0).actions == 2
    with pytest.raises(ValueError, match=r"they need shape \(A, S, S\)"):
        ck.CMDP(p.swapaxes(0, 1), reward=np.zeros((3, 2)), gamma=0.9, action_axis=0)
    with pytest.raises(ValueError, match=r"action_axis must be 1"):
        ck.CMDP(p, reward=np.zeros((3, 2)), gamma=0.9, action_axis=2)


# -- one matrix per action ---------------------------------------------------------------------------------------------


def forest(states=4, fire=0.1):
    """The forest of pymdptoolbox: wait and grow, unless there is a fire, or cut and start again."""
    p = np.zeros((2, states, states))
    p[0, :, 0] = fire
    p[0, np.arange(states), np.minimum(np.arange(states) + 1, states - 1)] += 1.0 - fire
    p[1, :, 0] = 1.0
    r = np.zeros((states, 2))
    r[-1, 0], r[1:, 1], r[-1, 1] = 4.0, 1.0, 2.0
    return p, r


def test_matrices_of_every_kind_give_the_same_model():
    p, r = forest()
    limit = ck.AtMost(np.tile([0.0, 1.0], (4, 1)), 0.5, name="cuts")
    hand = ck.CMDP(p.swapaxes(0, 1), reward=r, constraints=[limit], gamma=0.9, initial=0)
    objects = np.empty(2, dtype=object)
    objects[:] = [sp.csr_matrix(p[0]), sp.csr_matrix(p[1])]
    for matrices in (
        p,
        list(p),
        p.tolist(),
        [sp.csr_array(p[0]), sp.coo_array(p[1])],
        [p[0], sp.csc_array(p[1])],
        objects,
    ):
        cmdp = ck.CMDP.from_matrices(matrices, reward=r, constraints=[limit], gamma=0.9, initial=0)
        assert_same(cmdp, hand)
    assert ck.solve(hand).objective == pytest.approx(ck.solve(cmdp, "lp").objective, abs=1e-6)


def test_rewards_of_matrices_have_every_shape():
    p, _ = forest()
    rng = np.random.default_rng(2)
    r = rng.normal(size=p.shape)  # per action, state and next state
    expected = np.einsum("asn,asn->sa", p, r)
    sparse = [sp.csr_array(m) for m in p]
    for matrices in (p, sparse):
        for reward in (r, list(r), [sp.csr_array(m) for m in r]):
            given = ck.CMDP.from_matrices(matrices, reward=reward, gamma=0.9)
            np.testing.assert_allclose(given.objective, expected, rtol=1e-14)
        state = ck.CMDP.from_matrices(matrices, cost=r[0, 0], constraints=[ck.AtMost(r, 1.0)], gamma=0.9)
        np.testing.assert_array_equal(state.objective, np.stack([r[0, 0], r[0, 0]], axis=1))
        np.testing.assert_allclose(state.constraints[0].values, expected, rtol=1e-14)
        assert not state.maximise
    strange = np.where(p > 0.0, r, np.nan)  # what stands at impossible transitions does not matter
    np.testing.assert_allclose(ck.CMDP.from_matrices(p, reward=strange, gamma=0.9).objective, expected, rtol=1e-14)


def test_bad_matrices_are_refused():
    p, r = forest()
    with pytest.raises(ValueError, match=r"the matrix of action 1 has shape \(3, 3\); every action needs"):
        ck.CMDP.from_matrices([p[0], np.eye(3)], reward=r, gamma=0.9)
    with pytest.raises(ValueError, match=r"For an \(S, A, S\) array use CMDP"):
        ck.CMDP.from_matrices(p.swapaxes(0, 1), reward=r, gamma=0.9)
    with pytest.raises(ValueError, match=r"reward has shape \(2, 4\); .* needs shape \(4,\), \(4, 2\) or \(2, 4, 4\)"):
        ck.CMDP.from_matrices(p, reward=r.T, gamma=0.9)
    wrong = p.copy()
    wrong[0, 2, 1] = 0.5
    with pytest.raises(ValueError, match=r"state 2, action 0 sum to 1.5"):
        ck.CMDP.from_matrices(wrong, reward=r, gamma=0.9)
    with pytest.raises(ValueError, match=r"reward has 1 matrices, but there are 2 actions"):
        ck.CMDP.from_matrices(p, reward=[sp.csr_array(p[0])], gamma=0.9)
    with pytest.raises(ValueError, match=r"the list of matrices is empty"):
        ck.CMDP.from_matrices([], reward=r, gamma=0.9)
    with pytest.raises(TypeError, match=r"must be an \(A, S, S\) array or a list of A matrices"):
        ck.CMDP.from_matrices(sp.csr_array(p[0]), reward=r, gamma=0.9)
    with pytest.raises(ValueError, match=r"exactly one of reward"):
        ck.CMDP.from_matrices(p, gamma=0.9)


# -- QuantEcon ---------------------------------------------------------------------------------------------------------


def machine_ddp(form):
    """The machine of test_ways_in in each form of DiscreteDP."""
    hand = by_hand()
    reward = np.where(hand.pairs.mask, hand.pairs.table(hand.objective, 0.0), -np.inf)
    q = np.full((2, 3, 2), 0.5)
    q[hand.pairs.state, hand.pairs.action] = dense(hand)
    if form == "product":
        return DiscreteDP(reward, q, 0.9)
    rows = [2, 0, 1]  # in another order than ours
    if form == "infeasible pairs":
        s, a = np.divmod(np.arange(6), 3)
        return DiscreteDP(reward.ravel(), q.reshape(6, 2), 0.9, s, a)
    matrix = dense(hand)[rows] if form == "pairs" else sp.csr_matrix(dense(hand)[rows])
    return DiscreteDP(hand.objective[rows], matrix, 0.9, hand.pairs.state[rows], hand.pairs.action[rows])


@pytest.mark.parametrize("form", ["product", "pairs", "sparse pairs", "infeasible pairs"])
def test_quantecon_gives_the_model_built_by_hand(form):
    ddp, hand = machine_ddp(form), by_hand()
    wear = ck.AtMost(hand.pairs.table(hand.constraints[0].values, np.nan), 4.0, name="wear")
    labels = {"state_labels": hand.state_labels, "action_labels": hand.action_labels}
    cmdp = ck.CMDP.from_quantecon(ddp, constraints=[wear], initial="good", **labels)
    assert_same(cmdp, hand)
    free = ck.solve(ck.CMDP.from_quantecon(ddp, initial=1), tol=1e-9)
    assert free.objective == pytest.approx(ddp.solve(method="policy_iteration").v[1], abs=1e-8)


def test_quantecon_limits_may_follow_its_pairs():
    ddp = machine_ddp("infeasible pairs")
    cmdp = ck.CMDP.from_quantecon(ddp, constraints=[ck.AtMost(np.arange(6.0), 4.0)], gamma=0.5)
    np.testing.assert_array_equal(cmdp.constraints[0].values, [0.0, 1.0, 5.0])
    assert cmdp.gamma == 0.5
    with pytest.raises(TypeError, match=r"a quantecon.markov.DiscreteDP is needed; a dict has no R"):
        ck.CMDP.from_quantecon({})


# -- Gymnasium ---------------------------------------------------------------------------------------------------------


def rolled(env, policy, gamma, cost, episodes, seed):
    """Discounted reward and cost per episode, by playing."""
    totals = []
    for episode in range(episodes):
        rng = np.random.default_rng([seed, episode])
        state, _ = env.reset(seed=int(rng.integers(2**31)))
        total, discount, ended = np.zeros(2), 1.0, False
        while not ended and discount > 1e-5:
            action = int(policy.sample(state, rng))
            following, reward, ended, _, _ = env.step(action)
            total += discount * np.array([reward, cost(state, action, following, reward, ended)])
            state, discount = following, discount * gamma
        totals.append(total)
    return np.array(totals)


@pytest.mark.parametrize("name", ["FrozenLake-v1", "CliffWalking-v1", pytest.param("Taxi-v4", marks=pytest.mark.slow)])
def test_environments_behave_like_their_model(name):
    """A random policy earns in the model what it earns when it is played."""
    env: Any = gymnasium.make(name).unwrapped

    def cost(state, action, following, reward, ended):
        return float(action == 0) + 3.0 * float(ended)

    cmdp = ck.CMDP.from_gymnasium(env, cost=cost, constraints=[ck.AtMost(None, 1.0, name="c")], gamma=0.9)
    assert (cmdp.states, cmdp.actions) == (env.observation_space.n, env.action_space.n)
    assert cmdp.pairs.is_full
    assert cmdp.state_labels is None
    policy = ck.TabularPolicy(np.random.default_rng(1).dirichlet(np.ones(cmdp.actions), size=cmdp.states))
    exact = ck.evaluate(cmdp, policy)
    totals = rolled(env, policy, 0.9, cost, 1_500, seed=3)
    error = totals.std(axis=0) / np.sqrt(len(totals)) + 1e-9
    assert abs(totals[:, 0].mean() - exact.objective) < 4.5 * error[0]
    assert abs(totals[:, 1].mean() - exact.constraint_values[0]) < 4.5 * error[1]


def test_frozen_lake_by_hand():
    env = gymnasium.make("FrozenLake-v1", desc=["SH", "FG"], is_slippery=False)
    cmdp = ck.CMDP.from_gymnasium(
        env, cost={"holes": lambda s, a, n, r, ended: float(n == 1)}, constraints=[ck.AtMost("holes", 0.1)], gamma=0.9
    )
    left, down, right, up = range(4)
    p, r, c = np.zeros((4, 4, 4)), np.zeros((4, 4)), np.zeros((4, 4))
    for s, moves in {0: {left: 0, down: 2, right: 1, up: 0}, 2: {left: 2, down: 2, right: 3, up: 0}}.items():
        for a, n in moves.items():
            p[s, a, n] = 1.0
    p[1, :, 1] = p[3, :, 3] = 1.0  # the hole and the goal
    r[2, right] = 1.0
    c[0, right] = 1.0
    hand = ck.CMDP(p, reward=r, constraints=[ck.AtMost(c, 0.1, name="holes")], gamma=0.9, initial=0, action_axis=1)
    assert_same(cmdp, hand)
    assert ck.solve(cmdp).objective == pytest.approx(0.9)


def test_an_environment_can_be_named():
    named = ck.CMDP.from_gymnasium("FrozenLake-v1", gamma=0.9)
    assert_same(named, ck.CMDP.from_gymnasium(gymnasium.make("FrozenLake-v1"), gamma=0.9))
    with pytest.raises(ValueError, match=r"Gymnasium cannot make 'FrozenPond-v1'"):
        ck.CMDP.from_gymnasium("FrozenPond-v1", gamma=0.9)
    with pytest.raises(TypeError, match=r"env must be a Gymnasium environment or the name of one, not 3"):
        ck.CMDP.from_gymnasium(3, gamma=0.9)


class Loop(gymnasium.Env):
    """Ends with probability 1/2 in a state that it also passes through."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(1)
    P = {0: {0: [(1.0, 1, 1.0, False)]}, 1: {0: [(0.5, 0, 2.0, True), (0.5, 0, 0.0, False)]}}  # noqa: RUF012


def test_episodes_that_end_where_others_go_on_end_in_a_state_of_their_own():
    cmdp = ck.CMDP.from_gymnasium(Loop(), gamma=0.5, initial=0)
    assert cmdp.state_labels == (0, 1, "end")
    np.testing.assert_array_equal(dense(cmdp), [[0, 1, 0], [0.5, 0, 0.5], [0, 0, 1]])
    np.testing.assert_array_equal(cmdp.objective.ravel(), [1.0, 1.0, 0.0])
    with pytest.raises(ValueError, match=r"does not say where it starts"):
        ck.CMDP.from_gymnasium(Loop(), gamma=0.5)


def test_environments_without_a_table_are_refused():
    with pytest.raises(ValueError, match=r"no table env.unwrapped.P .* cmdpkit.train, or log .* CMDP.from_samples"):
        ck.CMDP.from_gymnasium(gymnasium.make("CartPole-v1"), gamma=0.9)
    env = gymnasium.make("FrozenLake-v1")
    with pytest.raises(ValueError, match=r"cost must tell the costs that the 1 limits bound"):
        ck.CMDP.from_gymnasium(env, constraints=[ck.AtMost("holes", 1.0)], gamma=0.9)
    with pytest.raises(ValueError, match=r"the cost 'holes'; did you mean 'hole'\?"):
        ck.CMDP.from_gymnasium(env, cost={"hole": max}, constraints=[ck.AtMost("holes", 1.0)], gamma=0.9)
    broken = Loop()
    broken.P = {0: {0: [(0.5, 1, 1.0, False)]}, 1: {0: [(1.0, 0, 0.0, False)]}}
    with pytest.raises(ValueError, match=r"state 0, action 0: the probabilities sum to 0.5.*env.unwrapped.P"):
        ck.CMDP.from_gymnasium(broken, gamma=0.9, initial=0)
