"""Models of other libraries, read and written: Gymnasium, pymdptoolbox's arrays, QuantEcon and Storm."""

import warnings

import gymnasium
import numpy as np
import pytest
import scipy.sparse as sp
import stormpy
import stormpy.examples.files as storm_files
from quantecon.markov import DiscreteDP

import cmdpkit as ck
from tests.test_ways_in import assert_same, by_hand, dense, random_model

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


@pytest.mark.parametrize("name", ["FrozenLake-v1", "CliffWalking-v1", "Taxi-v4"])
def test_environments_behave_like_their_model(name):
    """A random policy earns in the model what it earns when it is played."""
    env = gymnasium.make(name).unwrapped

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


# -- Storm -------------------------------------------------------------------------------------------------------------

PROGRAM = """
mdp
const int N;
module walk
  x : [0..N] init 0;
  [go] x<N -> 0.5 : (x'=x+1) + 0.5 : (x'=x);
  [] x<N -> true;
  [] x<N -> 0.1 : (x'=0) + 0.9 : (x'=x);
  [end] x=N -> true;
endmodule
rewards "height" x>0 : x; [go] true : 1.5; endrewards
label "top" = x=N;
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "walk.prism"
    path.write_text(PROGRAM)
    return path


def walk_by_hand(labels=True):
    p = [[0.5, 0.5, 0], [1, 0, 0], [1, 0, 0], [0, 0.5, 0.5], [0, 1, 0], [0.1, 0.9, 0], [0, 0, 1]]
    mask = np.array([[True, True, True, False], [True, True, True, False], [False, False, False, True]])
    return ck.CMDP(
        np.array(p, dtype=float),
        reward=[1.5, 0.0, 0.0, 2.5, 1.0, 1.0, 2.0],
        constraints=[ck.AtMost([0.0, 0.0, 1.0], 3.0, name="top")],
        gamma=0.9,
        initial=0,
        available=mask,
        state_labels=["x=0", "x=1", "x=2"] if labels else None,
        action_labels=["go", "choice 1", "choice 2", "end"],
    )


def from_storm(source, **changes):
    settings = {"reward": "height", "constraints": [ck.AtMost("top", 3.0)], "gamma": 0.9, **changes}
    return ck.CMDP.from_storm(source, **settings)


def test_storm_gives_the_model_built_by_hand(program):
    cmdp = from_storm(program, constants="N=2")
    assert_same(cmdp, walk_by_hand())
    assert_same(from_storm(str(program), constants={"N": 2}, initial="x=0"), walk_by_hand())
    result = ck.solve(cmdp)
    assert result.objective == pytest.approx(ck.solve(walk_by_hand(), "lp").objective, abs=1e-6)
    assert result.constraint_values[0] == pytest.approx(3.0, abs=1e-5)  # the limit binds


def test_storm_models_in_memory_and_in_every_format(program, tmp_path):
    prism, _ = stormpy.instantiate_constants(stormpy.parse_prism_program(program), "N=2")
    model = stormpy.build_model(prism, options=stormpy.BuilderOptions(build_full=True))
    assert_same(from_storm(model), walk_by_hand())
    stormpy.io.export_to_drn(model, tmp_path / "walk.drn")
    # In a DRN file the choices without a label share a name.
    drn = from_storm(tmp_path / "walk.drn")
    np.testing.assert_array_equal(dense(drn), dense(walk_by_hand()))
    np.testing.assert_array_equal(drn.costs, walk_by_hand().costs)
    stormpy.io.export_to_umb(model, tmp_path / "walk.umb")
    assert_same(from_storm(tmp_path / "walk.umb"), walk_by_hand())


def test_a_markov_chain_has_one_choice_per_state():
    cmdp = ck.CMDP.from_storm(storm_files.prism_dtmc_die, cost="coin_flips", gamma=0.5)
    assert (cmdp.states, cmdp.pairs.count) == (13, 13)
    # Three coins or more: 1 + γ + γ² and then, with probability 1/4 each round, two more
    value = ck.solve(cmdp).objective
    flips = 1.0 + 0.5 + 0.25  # a round; one path in four goes back to where one flip was made
    assert value == pytest.approx(1.0 + (flips - 1.0) / (1.0 - 0.25 * 0.25))


def test_drn_files_are_read_by_storm_exactly(tmp_path):
    cmdp = random_model(4)
    cmdp.to_drn(tmp_path / "model.drn")
    back = ck.CMDP.from_storm(
        tmp_path / "model.drn",
        cost="cost",
        constraints=[ck.AtMost("heat", 3.0), ck.AtLeast("x", 0.1)],
        gamma=0.95,
    )
    assert back.state_labels is None
    order = [back.action_labels.index(label) for label in cmdp.action_labels]
    np.testing.assert_array_equal(back.pairs.mask[:, order], cmdp.pairs.mask)
    rows = back.pairs.find(cmdp.pairs.state, np.array(order)[cmdp.pairs.action])
    np.testing.assert_array_equal(dense(back)[rows], dense(cmdp))
    np.testing.assert_array_equal(back.costs[:, rows], cmdp.costs)
    np.testing.assert_array_equal(back.initial, cmdp.initial)
    with pytest.raises(ValueError, match=r"one initial state, but the initial distribution has 7.*initial=0"):
        ck.CMDP(np.eye(7)[:, None], reward=np.zeros(7), gamma=0.9).to_drn(tmp_path / "none.drn")


def test_words_of_drn_files(tmp_path):
    p, spaced = np.ones((1, 2, 1)), ["run fast", "rest [1]"]
    limit = ck.AtMost([[0, 1]], 1, name="heat, in K")
    cmdp = ck.CMDP(p, reward=[[1, 2]], constraints=[limit], gamma=0.5, action_labels=spaced, state_labels=["only\none"])
    cmdp.to_drn(tmp_path / "m.drn")
    back = ck.CMDP.from_storm(tmp_path / "m.drn", reward="reward", constraints=[ck.AtMost("heat__in_K", 1)], gamma=0.5)
    assert back.action_labels == ("run_fast", "rest__1_")
    np.testing.assert_array_equal(back.costs, cmdp.costs)
    twins = ck.CMDP(p, reward=[[1, 2]], gamma=0.5, action_labels=["a b", "a_b"])
    with pytest.raises(ValueError, match=r"actions that differ only in punctuation"):
        twins.to_drn(tmp_path / "n.drn")


def test_bad_storm_input_is_refused(program, tmp_path):
    with pytest.raises(ValueError, match=r"Storm cannot read .*undefined constants"):
        from_storm(program)
    with pytest.raises(ValueError, match=r"no reward model or label 'hight'; did you mean 'height'\?"):
        from_storm(program, constants="N=2", reward="hight")
    with pytest.raises(ValueError, match=r"initial names the state 'x=9'"):
        from_storm(program, constants="N=2", initial="x=9")
    with pytest.raises(ValueError, match=r"one of the two"):
        from_storm(program, constants="N=2", cost="height")
    (tmp_path / "m.drn").write_text("x")
    (tmp_path / "m.txt").write_text("x")
    with pytest.raises(ValueError, match=r"constants are for PRISM and JANI"):
        from_storm(tmp_path / "m.drn", constants="N=2")
    with pytest.raises(ValueError, match=r"Storm cannot read"):
        from_storm(tmp_path / "m.drn")
    with pytest.raises(FileNotFoundError, match=r"no such file"):
        from_storm(tmp_path / "none.prism")
    with pytest.raises(ValueError, match=r"not a file that Storm reads, judging by its name"):
        from_storm(tmp_path / "m.txt")
    with pytest.raises(TypeError, match=r"a path or a sparse model of stormpy"):
        from_storm(3)
    with pytest.raises(ValueError, match=r"the model is a CTMC"):
        from_storm(stormpy.build_model_from_drn(storm_files.drn_ctmc_dft))
