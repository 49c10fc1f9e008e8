"""Environments: physics against Gymnasium's, rewards and costs by hand, wrappers, and what is refused."""

import subprocess
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import cmdpkit as ck
from cmdpkit.envs import (
    ConstrainedAcrobot,
    ConstrainedAcrobots,
    FloatCosts,
    SixTuple,
    Step,
    WithCosts,
    as_batch,
    read_costs,
)
from cmdpkit.envs.acrobot_kernels import step_parallel
from cmdpkit.envs.batch import lean_batch
from cmdpkit.envs.costs import as_reward

NAME = "cmdpkit/ConstrainedAcrobot-v0"
MANY_STEPS = 10**9  # windows that never end


def set_physical(acrobots, physical):
    acrobots.restore({**acrobots.state(), "physical": np.asarray(physical, dtype=float)})


# Physics


def test_physics_is_gymnasiums_step_for_step():
    """From the same state and action the float32 observations are equal, all over the state space."""
    rng = np.random.default_rng(0)
    n = 3_000
    states = rng.uniform(-1.0, 1.0, (n, 4)) * [np.pi, np.pi, 4.0 * np.pi, 9.0 * np.pi]
    actions = rng.integers(0, 3, n)
    acrobots = ConstrainedAcrobots(n, MANY_STEPS)
    acrobots.reset(seed=0)
    set_physical(acrobots, states)
    ours, _, _, _, _ = acrobots.step(actions)
    bare: Any = gymnasium.make("Acrobot-v1").unwrapped
    bare.reset(seed=0)
    for i in range(n):
        bare.state = states[i]
        theirs, _, goal, _, _ = bare.step(int(actions[i]))
        if goal:  # ours hangs down again
            assert (np.abs(acrobots.state()["physical"][i]) <= 0.1).all()
        else:
            np.testing.assert_allclose(acrobots.state()["physical"][i], bare.state, rtol=0.0, atol=1e-12)
            np.testing.assert_allclose(ours[i], theirs, rtol=1e-7, atol=1e-7)


def test_whole_trajectories_are_gymnasiums():
    """Left alone for 100 random steps, still the same float32 numbers: rounding has not been given room to grow."""
    starts = 20
    rng = np.random.default_rng(1)
    bares: list[Any] = [gymnasium.make("Acrobot-v1").unwrapped for _ in range(starts)]
    for i, bare in enumerate(bares):
        bare.reset(seed=i)
    acrobots = ConstrainedAcrobots(starts, MANY_STEPS)
    acrobots.reset(seed=0)
    set_physical(acrobots, [bare.state for bare in bares])
    equal = np.ones(starts, dtype=bool)
    for _ in range(100):
        actions = rng.integers(0, 3, starts)
        ours = acrobots.step(actions)[0]
        answers = [bare.step(int(a)) for bare, a in zip(bares, actions, strict=True)]
        assert not any(answer[2] for answer in answers)  # no goal by chance, or the comparison would end
        theirs = np.stack([answer[0] for answer in answers])
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
        equal &= (ours == theirs).all(axis=1)
    assert equal.mean() >= 0.9


@pytest.mark.parametrize(
    ("state", "action", "reward", "costs"),
    [
        ((0.0, 0.0, -1.0, -1.0), 0, 0.0, (0.0, 0.0)),  # hanging down: height −2; action 0 is always free
        ((0.0, 0.0, -1.0, -1.0), 1, 0.0, (1.0, 1.0)),
        ((0.0, 0.0, -1.0, 1.0), 2, 0.0, (1.0, 0.0)),
        ((0.0, 0.0, 1.0, -1.0), 2, 0.0, (0.0, 1.0)),
        ((0.0, 0.0, 0.0, 0.0), 2, 0.0, (0.0, 0.0)),  # standing still is not swinging back
        ((np.pi / 2.0, 0.0, 1.0, 1.0), 2, 1.0, (0.0, 0.0)),  # level: height 0 > −0.5
        ((0.0, 2.1, 1.0, 1.0), 1, 1.0, (0.0, 0.0)),  # −1 − cos 2.1 = −0.495
        ((0.0, 2.09, 1.0, 1.0), 1, 0.0, (0.0, 0.0)),  # −1 − cos 2.09 = −0.504
    ],
)
def test_reward_and_costs_by_hand(state, action, reward, costs):
    acrobots = ConstrainedAcrobots(1)
    acrobots.reset(seed=0)
    set_physical(acrobots, [state])
    _, rewards, _, _, infos = acrobots.step(np.array([action]))
    assert rewards == [reward]
    np.testing.assert_array_equal(infos["costs"], [costs])
    single: Any = gymnasium.make(NAME)
    single.reset(seed=0)
    single.unwrapped.state = np.array(state)
    _, earned, _, _, info = single.step(action)
    assert earned == reward
    np.testing.assert_array_equal(info["costs"], costs)


def test_goal_hangs_down_again_and_the_window_goes_on():
    env: Any = gymnasium.make(NAME)
    env.reset(seed=0)
    env.unwrapped.state = np.array([np.pi - 0.01, 0.0, 0.0, 0.0])
    observation, reward, terminated, truncated, info = env.step(1)
    assert (reward, terminated, truncated, info["goal"]) == (1.0, False, False, True)
    np.testing.assert_allclose(observation[[0, 2]], 1.0, atol=0.01)
    ends = [env.step(1)[2:4] for _ in range(499)]
    assert ends[:-1] == [(False, False)] * 498
    assert ends[-1] == (False, True)


def returns(choose, windows=1_000):
    """Mean sums of reward and costs over a window."""
    acrobots = ConstrainedAcrobots(windows)
    observations, _ = acrobots.reset(seed=1)
    total = np.zeros(3)
    for _ in range(500):
        observations, rewards, _, _, infos = acrobots.step(choose(observations))
        total += [rewards.mean(), *infos["costs"].mean(axis=0)]
    return total


def test_calibration_of_the_random_policy():
    """20,000 windows give 14.4 (deviation 28 a window) and 166.7 twice."""
    rng = np.random.default_rng(2)
    reward, *costs = returns(lambda o: rng.integers(0, 3, len(o)))
    assert reward == pytest.approx(14.4, abs=3.0)
    assert costs == pytest.approx([166.7, 166.7], abs=1.2)


def test_calibration_of_the_hand_written_rule():
    """Push forward unless a link swings back: 20,000 windows give 104.3 (deviation 39 a window), at no cost at all."""
    reward, *costs = returns(lambda o: np.where((o[:, 4] < 0.0) | (o[:, 5] < 0.0), 0, 2))
    assert reward == pytest.approx(104.3, abs=4.0)
    assert costs == [0.0, 0.0]


# Gymnasium's conventions


def test_check_env_has_nothing_to_say():
    env = gymnasium.make(NAME)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        check_env(env.unwrapped, skip_render_check=True)
    assert [str(w.message) for w in said] == []


def test_make_vec_makes_the_compiled_one():
    envs = gymnasium.make_vec(NAME, num_envs=5)
    assert isinstance(envs, ConstrainedAcrobots)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    observations, _ = envs.reset(seed=3)
    assert envs.observation_space.contains(observations)
    assert envs.action_space.contains(envs.action_space.sample())
    assert envs.observation_space == gymnasium.make_vec(NAME, 5, vectorization_mode="sync").observation_space


def test_compiled_and_single_agree_over_a_window():
    """Same start, same actions: the same rewards, costs and end, with Gymnasium's own conventions for the end."""
    batch, single = ConstrainedAcrobots(1, 60), gymnasium.make(NAME, max_episode_steps=60)
    batch.reset(seed=0)
    single.reset(seed=0)
    set_physical(batch, [single.get_wrapper_attr("state")])
    rng = np.random.default_rng(0)
    for _ in range(60):
        action = int(rng.integers(3))
        observation, reward, terminated, truncated, info = single.step(action)
        ours, rewards, terminations, truncations, infos = batch.step(np.array([action]))
        seen = infos["final_obs"] if truncated else ours
        np.testing.assert_allclose(seen[0], observation, atol=1e-6)
        assert (rewards[0], terminations[0], truncations[0]) == (reward, terminated, truncated)
        np.testing.assert_array_equal(read_costs(infos, 1)[0], info["costs"])
    assert truncated
    assert not np.array_equal(ours, infos["final_obs"])


def test_seeds_and_streams():
    one, other = ConstrainedAcrobots(4), ConstrainedAcrobots(7)
    first, _ = one.reset(seed=5)
    second, _ = other.reset(seed=5)
    np.testing.assert_array_equal(first, second[:4])  # what an environment does does not depend on the others
    assert len(np.unique(first[:, 1])) == 4
    again, _ = one.reset()
    assert not np.array_equal(first, again)
    np.testing.assert_array_equal(one.reset(seed=5)[0], first)
    by_list, _ = one.reset(seed=[1, 2, None, 1])
    np.testing.assert_array_equal(by_list[0], by_list[3])
    mask = np.array([True, False, False, False])
    masked, _ = one.reset(options={"reset_mask": mask})
    np.testing.assert_array_equal((masked == by_list).all(axis=1), ~mask)


def test_state_continues_bit_for_bit_and_threads_change_nothing():
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 3, (150, 40))
    one = ConstrainedAcrobots(40, 70)
    one.reset(seed=0)
    for a in actions[:50]:
        one.step(a)
    saved = one.state()
    expected = [one.step(a) for a in actions[50:]]
    for threads in (False, True):
        other = ConstrainedAcrobots(40, 70, threads=threads)
        other.restore(saved)
        for a, (observations, rewards, _, truncated, infos) in zip(actions[50:], expected, strict=True):
            answer = other.step(a)
            np.testing.assert_array_equal(answer[0], observations)
            np.testing.assert_array_equal(answer[1], rewards)
            np.testing.assert_array_equal(answer[3], truncated)
            np.testing.assert_array_equal(answer[4]["costs"], infos["costs"])
    assert ConstrainedAcrobots(40, threads=True)._advance is step_parallel


def test_every_window_has_its_full_length_and_keeps_its_last_observation():
    """An acrobot that hangs without torque: the last observation is not that of the new window."""
    envs = ConstrainedAcrobots(2, max_episode_steps=5)
    observations, _ = envs.reset(seed=0)
    single = ConstrainedAcrobot()
    single.reset(seed=0)
    ended = []
    for _ in range(15):
        single.state = envs.state()["physical"][0].copy()
        expected = single.step(1)[0]
        observations, _, _, truncated, infos = envs.step(np.ones(2, int))
        ended.append(bool(truncated[0]))
        if truncated[0]:
            np.testing.assert_allclose(infos["final_obs"][0], expected, atol=1e-6)
            assert np.abs(observations[0] - infos["final_obs"][0]).max() > 1e-4
        else:
            np.testing.assert_allclose(observations[0], expected, atol=1e-6)
    assert ended == [t % 5 == 4 for t in range(15)]


def test_a_state_that_was_taken_does_not_move_on():
    envs = ConstrainedAcrobots(3, max_episode_steps=4)
    envs.reset(seed=1)
    state = envs.state()
    kept = {name: value.copy() for name, value in state.items()}
    for _ in range(9):
        envs.step(np.full(3, 2))
    for name, value in kept.items():
        np.testing.assert_array_equal(state[name], value, err_msg=name)


# Wrappers


class Line(gymnasium.Env):
    """A walk on a line that ends at 3; its array is written again in every step."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, six=False, cost=1.0):
        self.six, self.cost, self.position = six, cost, np.zeros(1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position[:] = 0.0
        return self.position, {}

    def step(self, action):
        self.position += 1.0
        end = bool(self.position[0] >= 3.0)
        middle = (self.cost,) if self.six else ()
        return self.position, 2.0, *middle, end, False, {"there": end}


def test_with_costs_sees_before_and_after():
    env = WithCosts(Line(), lambda s: [s.observation[0], s.next_observation[0], s.reward, s.action, s.terminated])
    env.reset(seed=0)
    for t in range(3):
        _, reward, terminated, _, info = env.step(1)
        np.testing.assert_array_equal(info["costs"], [t, t + 1, 2.0, 1, t == 2])
        assert "cost" not in info
        assert info["there"] is (t == 2)
    assert terminated
    assert reward == 2.0


def test_one_cost_is_a_number():
    env = WithCosts(Line(), lambda s: s.next_observation[0] > 1.5)
    env.reset(seed=0)
    assert [env.step(0)[-1]["cost"] for _ in range(2)] == [0.0, 1.0]


def test_six_tuples_become_five():
    env = SixTuple(Line(six=True, cost=np.float32(0.25)))
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(0)
    assert (observation[0], reward, terminated, truncated) == (1.0, 2.0, False, False)
    assert info == {"there": False, "cost": 0.25}
    env.step(0)
    assert env.step(0)[2:4] == (True, False)  # the walk ends by itself, it is not cut off


def test_wrapped_environments_in_a_batch_report_every_cost():
    """The step in which an episode ends reports in final_info."""
    envs = as_batch(lambda: WithCosts(Line(), lambda s: [s.observation[0], 7.0]), num_envs=2)
    envs.reset(seed=0)
    costs = np.stack([read_costs(envs.step(np.zeros(2, int))[-1], 2, count=2) for _ in range(7)])
    np.testing.assert_array_equal(costs[:, 0, 0], [0, 1, 2, 0, 1, 2, 0])
    np.testing.assert_array_equal(costs[..., 1], 7.0)
    one = as_batch(lambda: WithCosts(Line(), lambda s: s.observation[0]), num_envs=2)
    one.reset(seed=0)
    costs = np.stack([read_costs(one.step(np.zeros(2, int))[-1], 2) for _ in range(4)])
    np.testing.assert_array_equal(costs[:, :, 0], [[0, 0], [1, 1], [2, 2], [0, 0]])


def test_costs_of_environments_that_ended_are_in_their_final_info():
    """Environment 1 ended: its costs are those of the last step, the others' those of this one."""
    infos = {
        "cost": np.array([1.0, 99.0, 3.0]),
        "final_info": {"cost": np.array([98.0, 2.0, 97.0])},
        "_final_info": np.array([False, True, False]),
    }
    np.testing.assert_array_equal(read_costs(infos, 3), [[1.0], [2.0], [3.0]])
    # all ended in the same step: there may be no other costs at all
    ended = {"final_info": {"costs": np.array([[4.0, 5.0]])}, "_final_info": np.array([True])}
    np.testing.assert_array_equal(read_costs(ended, 1, count=2), [[4.0, 5.0]])


def test_whole_numbers_do_not_cut_fractions():
    """A batch takes the type of the first cost it sees: an int 0 must not make 0.7 a 0."""
    costs = iter([0, 0.7, 0.3, 1])
    envs = as_batch(lambda: WithPlainCost(Line(), costs), num_envs=2)
    envs.reset(seed=0)
    for expected in ([[0.0], [0.7]], [[0.3], [1.0]]):
        np.testing.assert_array_equal(read_costs(envs.step(np.zeros(2, int))[-1], 2), expected)


class WithPlainCost(gymnasium.Wrapper):
    """Reports its costs as they are, whole numbers too."""

    def __init__(self, env, costs):
        super().__init__(env)
        self.costs = costs

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, "cost": next(self.costs)}


def test_a_name_is_enough_for_a_batch():
    assert isinstance(as_batch(NAME, 3), ConstrainedAcrobots)
    assert isinstance(as_batch("CartPole-v1", 3), SyncVectorEnv)


# Refusals


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (float("nan"), "must be finite"),
        ([1.0, float("inf")], "must be finite"),
        ([[1.0]], "shape"),
        ([], "shape"),
        ("much", "a number or a list"),
        ("1", "a number or a list"),
        (["1", 2.0], "a number or a list"),
        (None, "must be finite"),
    ],
)
def test_bad_costs_are_refused(cost, words):
    env = WithCosts(Line(), lambda s: cost)
    env.reset(seed=0)
    with pytest.raises((TypeError, ValueError), match=words):
        env.step(0)


def test_costs_that_change_shape_are_refused():
    env = WithCosts(Line(), lambda s: [1.0] * int(s.next_observation[0]))
    env.reset(seed=0)
    env.step(0)
    with pytest.raises(ValueError, match=r"shape \(2,\).*after shape \(1,\)"):
        env.step(0)


def test_wrappers_refuse_what_they_are_not_for():
    with pytest.raises(TypeError, match="fn must be a function"):
        WithCosts(Line(), 3.0)
    env = SixTuple(Line())
    env.reset(seed=0)
    with pytest.raises(ValueError, match="5 values"):
        env.step(0)
    twice = WithCosts(SixTuple(Line(six=True)), lambda s: 1.0)
    twice.reset(seed=0)
    with pytest.raises(ValueError, match="already reports costs"):
        twice.step(0)


def test_batches_refuse():
    with pytest.raises(TypeError, match="is one environment"):
        as_batch(Line(), 2)
    with pytest.raises(TypeError, match="env must be"):
        as_batch(3, 2)
    with pytest.raises(ValueError, match="2 environments, but 5"):
        as_batch(ConstrainedAcrobots(2), 5)
    with pytest.raises(ValueError, match="SAME_STEP"):
        as_batch(SyncVectorEnv([Line]), 1)


def test_missing_and_miscounted_costs_are_refused():
    with pytest.raises(ValueError, match="reports no costs"):
        read_costs({}, 2)
    with pytest.raises(ValueError, match="reports 1 cost, but 2 limits were given"):
        read_costs({"cost": np.zeros(2)}, 2, count=2)
    with pytest.raises(ValueError, match="reports 3 costs, but 2 limits were given"):
        read_costs({"costs": np.zeros((2, 3))}, 2, count=2)
    with pytest.raises(ValueError, match="environment 1 reported the costs"):
        read_costs({"cost": np.array([0.0, np.nan])}, 2)


def test_compiled_acrobots_refuse():
    with pytest.raises(ValueError, match="num_envs must be"):
        ConstrainedAcrobots(0)
    acrobots = ConstrainedAcrobots(2)
    with pytest.raises(RuntimeError, match="reset"):
        acrobots.step(np.array([0, 1]))
    acrobots.reset(seed=0)
    before = acrobots.state()
    for actions in ([0, 3], [-1, 0], [0.0, 1.0], [0]):
        with pytest.raises(ValueError, match="0, 1 and 2"):
            acrobots.step(actions)
    for name, value in acrobots.state().items():
        np.testing.assert_array_equal(value, before[name])
    with pytest.raises(ValueError, match="list of 3"):
        acrobots.reset(seed=[1, 2, 3])
    with pytest.raises(ValueError, match="reset_mask"):
        acrobots.reset(options={"reset_mask": np.array([1, 0])})
    with pytest.raises(ValueError, match="2 environments need"):
        acrobots.restore(ConstrainedAcrobots(3).state())


def test_nothing_heavy_is_imported_before_it_is_used():
    code = (
        "import sys, cmdpkit as ck; heavy = {'gymnasium', 'numba', 'torch'}; "
        "assert not heavy & set(sys.modules); ck.envs; assert not {'numba', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert "envs" in dir(ck)


# Costs that a batch would lose


def _batch(*costs):
    makers = [lambda c=c: WithPlainCost(Line(), iter(c)) for c in costs]
    envs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    envs.reset(seed=0)
    return envs


def test_a_users_batch_that_cuts_fractions_is_refused():
    """Gymnasium stores 0.9 as 0 where the first environment reported an int: an unsafe policy would look safe."""
    infos = _batch([0], [0.9]).step(np.zeros(2, int))[-1]
    assert infos["cost"].tolist() == [0, 0]
    with pytest.raises(ValueError, match=r"costs as int64.*FloatCosts"):
        read_costs(infos, 2)
    wrapped = SyncVectorEnv(
        [lambda c=c: FloatCosts(WithPlainCost(Line(), iter(c))) for c in ([0], [0.9])],
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    wrapped.reset(seed=0)
    np.testing.assert_array_equal(read_costs(wrapped.step(np.zeros(2, int))[-1], 2), [[0.0], [0.9]])


def test_an_environment_that_reports_no_cost_is_named():
    envs = SyncVectorEnv(
        [lambda: WithPlainCost(Line(), iter([0.5])), Line],
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="environment 1 reported no cost"):
        read_costs(envs.step(np.zeros(2, int))[-1], 2)


def test_a_reward_that_is_no_number_is_named():
    class Boxed(gymnasium.Wrapper):
        def step(self, action):
            observation, reward, *rest = self.env.step(action)
            return observation, np.array([reward]), *rest

    env = WithCosts(Boxed(Line()), lambda s: 0.0)
    env.reset(seed=0)
    with pytest.raises(TypeError, match=r"reward array.*reward\.item\(\)"):
        env.step(0)


@pytest.mark.parametrize("reward", [None, "1", np.ones(2)])
def test_rewards_of_any_other_kind_are_refused(reward):
    class Odd(gymnasium.Wrapper):
        def step(self, action):
            observation, _, *rest = self.env.step(action)
            return observation, reward, *rest

    env = FloatCosts(Odd(Line()))
    env.reset(seed=0)
    with pytest.raises(TypeError, match="must be one number"):
        env.step(0)


@pytest.mark.parametrize(("name", "cost"), [("cost", [0.5]), ("cost", np.array([0.5])), ("costs", 0.5)])
@pytest.mark.parametrize("batch", [as_batch, lambda make, count: lean_batch(make, count, {})])
def test_one_cost_may_be_a_list_and_several_a_number(name, cost, batch):
    envs = batch(lambda: Reporting(Line(), {name: cost}), 2)
    envs.reset(seed=0)
    for _ in range(4):  # beyond the end of an episode
        np.testing.assert_array_equal(read_costs(envs.step(np.zeros(2, int))[-1], 2, count=1), [[0.5], [0.5]])


class Reporting(gymnasium.Wrapper):
    """Reports the same infos in every step, and others in a reset."""

    def __init__(self, env, infos, last=None, first=None):
        super().__init__(env)
        self.infos, self.last, self.first = infos, infos if last is None else last, first or {}

    def reset(self, **options):
        return self.env.reset(**options)[0], dict(self.first)

    def step(self, action):
        *answer, _ = self.env.step(action)
        return *answer, dict(self.last if answer[2] else self.infos)


def test_a_cost_that_a_reset_reports_is_not_that_of_the_last_step():
    makers = [lambda: Reporting(Line(), {"cost": 1.0}, last={}, first={"cost": 7.0})] * 2
    envs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    envs.reset(seed=0)
    for _ in range(2):
        np.testing.assert_array_equal(read_costs(envs.step(np.zeros(2, int))[-1], 2), [[1.0], [1.0]])
    infos = envs.step(np.zeros(2, int))[-1]
    assert infos["cost"].tolist() == [7.0, 7.0]
    with pytest.raises(ValueError, match=r"environment 0 reported no cost.*last one of an episode"):
        read_costs(infos, 2)


def test_costs_that_a_users_batch_cannot_gather_are_refused():
    makers = [lambda: Reporting(Line(), {"costs": [0.1, 0.2]})] * 2
    envs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    envs.reset(seed=0)
    with pytest.raises(TypeError, match=r"list\(\[0.1, 0.2\]\).*FloatCosts"):
        read_costs(envs.step(np.zeros(2, int))[-1], 2)


@pytest.mark.parametrize("batch", [as_batch, lambda make, count: lean_batch(make, count, {})])
def test_the_last_observation_outlives_the_reset(batch):
    """`Line` writes 0 into the array that it has just returned."""
    envs = batch(lambda: Reporting(Line(), {"cost": 1.0}), 2)
    envs.reset(seed=0)
    for _ in range(3):
        seen, *_, infos = envs.step(np.zeros(2, int))
    np.testing.assert_array_equal(seen, [[0.0], [0.0]])
    np.testing.assert_array_equal(np.stack(infos["final_obs"]), [[3.0], [3.0]])


def test_a_batch_knows_its_own_number():
    assert as_batch(ConstrainedAcrobots(3)).num_envs == 3
    assert as_batch(Line).num_envs == 4


def test_a_module_in_the_current_directory_is_found(tmp_path, monkeypatch):
    (tmp_path / "my_lines_here.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('MyLine-v0', entry_point=CartPoleEnv)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert as_batch("my_lines_here:MyLine-v0", 2).num_envs == 2
    assert "" not in sys.path


def test_wrapping_writes_no_message_in_a_step(monkeypatch):
    """Messages are written for bad costs only: formatting one in every step took 80 % of HalfCheetah's time."""
    env = WithCosts(Line(), lambda s: 1)
    env.reset(seed=0)
    monkeypatch.setattr(Step, "__repr__", lambda self: pytest.fail("formatted"))
    assert env.step(0)[-1]["cost"] == 1.0


def test_rewards_without_dimensions_are_numbers():
    torch = pytest.importorskip("torch")
    for reward in (np.float32(0.5), np.array(0.5), torch.tensor(0.5)):
        assert as_reward(reward, "env") == 0.5
