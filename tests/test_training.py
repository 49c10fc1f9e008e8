"""train(): logs, checkpoints that survive kill -9, certificates on fresh episodes, bad environments and bad input."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial

import gymnasium
import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.certificates.episodes import NORMAL
from cmdpkit.envs import WithCosts
from cmdpkit.envs.numbers import numbers_of
from cmdpkit.files import load_tensors, save_tensors
from test_cli import on_screen, program

ACROBOT = "cmdpkit/ConstrainedAcrobot-v0"
SMALL = {"hidden": [16], "steps": 40, "num_envs": 4}


class Coin(gymnasium.Env):
    """One state for ten steps: action 1 earns 1 and costs 1, action 0 nothing. The best policy within a limit L on the
    sum mixes: it earns L."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), dtype=np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, trouble="none"):
        self.trouble, self.episodes = trouble, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.episodes = 0, self.episodes + 1
        return np.array([1.0, 0.0], dtype=np.float32), {}

    def step(self, action):
        self.time += 1
        late = self.episodes > 5  # two episodes tell this environment from others
        if self.trouble == "raises" and late:
            raise OSError("the motor is gone")
        observation = np.array([1.0, np.nan if self.trouble == "nan observation" and late else 0.0], dtype=np.float32)
        cost = np.nan if self.trouble == "nan cost" and late else float(action)
        info = {} if self.trouble == "no costs" else {"cost": cost}
        return observation, float(action), self.time >= 10, False, info


COIN = {"steps": 10, "num_envs": 50, "hidden": [8], "radius": 0.02}


def test_a_limit_is_learned():
    """The reward must end at the limit: all of it is used, and no more."""
    result = ck.train(Coin, limits=[4.0], iterations=120, eta_dual=0.05, inner_steps=1, **COIN)
    reward, costs = result.recent(40)
    assert costs[0] == pytest.approx(4.0, abs=0.4)
    assert reward == pytest.approx(costs[0])
    assert result.multipliers[0] == pytest.approx(1.0, abs=0.5)  # the price of a unit of cost is a unit of reward
    assert result.status is ck.Status.ITERATION_LIMIT


def test_the_defaults_learn_cartpole():
    """From 22 steps to the end of the episode, 500, without an option set."""
    reward = ck.train("CartPole-v1", "npg-pd", iterations=12).history["reward"]
    assert reward[0] < 50.0
    assert reward[-5:].min() > 350.0
    assert reward.max() > 475.0


@pytest.mark.parametrize("method", ["pmd-pd", "npg-pd", "crpo"])
def test_the_same_seed_gives_the_same_run(method):
    runs = [ck.train(ACROBOT, method, [5, 5], seed=seed, iterations=4, **SMALL) for seed in (1, 1, 2)]
    for column in ("reward", "costs", "multipliers", "divergence"):
        np.testing.assert_array_equal(runs[0].history[column], runs[1].history[column])
    for (w, b), (w2, b2) in zip(runs[0].policy.layers, runs[1].policy.layers, strict=True):
        np.testing.assert_array_equal(w, w2)
        np.testing.assert_array_equal(b, b2)
    assert (runs[0].policy.layers[0][0] != runs[2].policy.layers[0][0]).any()
    assert runs[0].steps == 4 * 4 * 40
    assert list(runs[0].history["steps"]) == [160, 320, 480, 640]


def test_the_multipliers_follow_the_rule():
    """λ_{k+1} = max(−η′V, λ_k + η′V), with the costs that the history shows for the policy after the step."""
    result = ck.train(ACROBOT, "pmd-pd", [5, 20], iterations=6, eta_dual=0.01, inner_steps=1, **SMALL)
    lam, costs = result.history["multipliers"], result.history["costs"]
    np.testing.assert_array_equal(lam[0], [0.0, 0.0])
    for k in range(5):
        v = costs[k + 1] - [5, 20]
        np.testing.assert_allclose(lam[k + 1], np.maximum(-0.01 * v, lam[k] + 0.01 * v), rtol=1e-12)


def test_a_policy_loads_in_three_lines_and_acts_without_torch(tmp_path):
    result = ck.train(ACROBOT, limits=[5, 5], iterations=2, normalise=True, **SMALL)
    result.policy.save(tmp_path / "policy.npz")
    script = f"""
import sys
for name in ("torch", "gymnasium", "numba", "scipy.optimize"):
    sys.modules[name] = None
import cmdpkit as ck
policy = ck.NeuralPolicy.load({str(tmp_path / "policy.npz")!r})
print(policy.act([1, 0, 1, 0, 0.5, -0.5]))
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert int(answer) == result.policy.act([1, 0, 1, 0, 0.5, -0.5])


def test_damaged_policies_are_refused(tmp_path):
    path = tmp_path / "policy.npz"
    ck.train(ACROBOT, limits=[5, 5], iterations=1, **SMALL).policy.save(path)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ValueError, match="not a readable cmdpkit file"):
        ck.NeuralPolicy.load(path)
    ck.TabularPolicy.uniform(2, 2).save(path)
    with pytest.raises(ValueError, match="cmdpkit policy"):
        ck.NeuralPolicy.load(path)


# -- the folder of a run ---------------------------------------------------------------------------------------------


def test_the_log_holds_the_history(tmp_path):
    result = ck.train(ACROBOT, limits=[5, 7], iterations=4, out=tmp_path / "run", **SMALL)
    with open(tmp_path / "run" / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["iteration"]) for row in rows] == [1, 2, 3, 4]
    np.testing.assert_array_equal([float(row["reward"]) for row in rows], result.history["reward"])
    np.testing.assert_array_equal([float(row["costs_1"]) for row in rows], result.history["costs"][:, 1])
    assert [row["verdict"] for row in rows] == result.history["verdict"].tolist()
    np.testing.assert_array_equal([int(row["steps"]) for row in rows], [160, 320, 480, 640])
    summary = json.loads((tmp_path / "run" / "result.json").read_text())
    assert summary["limits"] == [5.0, 7.0]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["env"] == ACROBOT
    assert not list((tmp_path / "run").glob(".*"))


def test_tensorboard_reads_what_was_written(tmp_path):
    """Every row of the history, in single precision; a dual update takes two iterations, so that 3 become 4."""
    settings = {"inner_steps": 2, "tensorboard": True, **SMALL}
    result = ck.train(ACROBOT, limits=[5, 7], iterations=3, out=tmp_path / "run", **settings)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    history = result.history
    expected = {"reward": history["reward"], "divergence": history["divergence"]}
    for i in range(2):
        expected |= {f"cost/{i + 1}": history["costs"][:, i], f"multiplier/{i + 1}": history["multipliers"][:, i]}
    assert set(events.Tags()["scalars"]) == set(expected)
    for name, column in expected.items():
        assert [event.step for event in events.Scalars(name)] == [1, 2, 3, 4]
        np.testing.assert_array_equal([event.value for event in events.Scalars(name)], column.astype(np.float32))


RUN = """
import sys, time
import cmdpkit as ck, cmdpkit.run.checkpoint
cmdpkit.run.checkpoint.SECONDS = 0.0
folder, wait = sys.argv[1], float(sys.argv[2])
def tell(row, number):
    print(number, flush=True)
    time.sleep(wait)
result = ck.train(
    "cmdpkit/ConstrainedAcrobot-v0", "pmd-pd", [5, 5], seed=3, iterations=16, hidden=[16], steps=40, num_envs=4,
    normalise=True, out=folder, resume=sys.argv[3] == "resume", callback=tell,
)
print("done", result.history["reward"].tolist(), result.history["costs"].tolist(), result.multipliers.tolist(),
      float(result.policy.layers[0][0].sum()), result.policy.shift.tolist(), result.verdicts, flush=True)
"""


def launch(folder, wait, resume):
    return subprocess.Popen([sys.executable, "-c", RUN, str(folder), str(wait), resume], stdout=subprocess.PIPE)


def test_a_killed_run_continues_to_the_same_result(tmp_path):
    whole, _ = launch(tmp_path / "whole", 0, "new").communicate(timeout=180)
    resume = "new"
    for after in (5, 10):
        process = launch(tmp_path / "killed", 0.05, resume)
        for line in process.stdout:
            if int(line) >= after:
                break
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        resume = "resume"
    rest, _ = launch(tmp_path / "killed", 0, "resume").communicate(timeout=180)
    assert int(rest.split()[0]) > 1
    assert rest.splitlines()[-1] == whole.splitlines()[-1]
    logs = [(tmp_path / name / "log.csv").read_text().splitlines() for name in ("whole", "killed")]
    without_time = [[line.rsplit(",", 1)[0] for line in log] for log in logs]
    assert without_time[0] == without_time[1]


def test_a_run_is_extended(tmp_path):
    ck.train(ACROBOT, limits=[5, 5], iterations=4, out=tmp_path / "run", **SMALL)
    longer = ck.train(ACROBOT, limits=[5, 5], iterations=8, out=tmp_path / "run", resume=True, **SMALL)
    once = ck.train(ACROBOT, limits=[5, 5], iterations=8, **SMALL)
    np.testing.assert_array_equal(longer.history["costs"], once.history["costs"])
    np.testing.assert_array_equal(longer.policy.layers[-1][0], once.policy.layers[-1][0])


def test_another_environment_of_the_same_name_is_not_resumed(tmp_path):
    def run(top, **options):
        make = lambda: WithCosts(gymnasium.make("CartPole-v1"), lambda s: abs(s.next_observation[0]) > top)  # noqa: E731
        return ck.train(make, limits=[5], out=tmp_path / "run", **SMALL | options)

    run(0.01, iterations=1)
    assert run(0.01, iterations=2, resume=True).iterations == 2
    with pytest.raises(ValueError, match="another run, with environment"):
        run(0.0, iterations=2, resume=True)


def test_a_changed_speed_limit_is_noticed_before_it_is_reached(tmp_path):
    """0.8 and 0.9 are the same to an untrained policy in its first steps."""

    def run(make, iterations=1, resume=None):
        return ck.train(make, limits=[5], iterations=iterations, resume=resume, out=tmp_path / "run", **SMALL)

    run(lambda: WithCosts(gymnasium.make("CartPole-v1"), lambda s: abs(s.next_observation[0]) > 0.8))
    changed = lambda: WithCosts(gymnasium.make("CartPole-v1"), lambda s: abs(s.next_observation[0]) > 0.9)  # noqa: E731
    with pytest.raises(ValueError, match=r'numbers in the code of the environment = \["0.0", "0.8"\]'):
        run(changed, resume=True)
    # a run of a version that did not store them goes on
    path = tmp_path / "run/checkpoint.safetensors"
    arrays = load_tensors(path, "cmdpkit checkpoint")
    identity = {name: value for name, value in json.loads(arrays["run"]).items() if "numbers" not in name}
    save_tensors(path, "cmdpkit checkpoint", arrays | {"run": json.dumps(identity)})
    assert run(changed, 2, resume=True).iterations == 2


TOP = 0.25


def too_far(step):
    return abs(step.observation[0]) > TOP


class Bounded(gymnasium.Env):
    top = 1.5

    def step(self, action, scale=3.0):
        return self.top > 7.0 * scale


def closing_over(*things):
    return lambda: things


def test_the_numbers_of_an_environment():
    far = 4.5
    assert numbers_of("CartPole-v1") == []
    assert numbers_of(lambda: WithCosts(gymnasium.make("CartPole-v1"), too_far)) == ["0.0", "0.25"]
    assert numbers_of(partial(lambda a, b: a > b * far, 2, b=6.0)) == ["4.5", "2.0", "6.0"]
    assert numbers_of(Bounded) == ["1.5", "7.0", "3.0"]
    assert numbers_of(lambda: Bounded()) == numbers_of(Bounded)
    several = [closing_over(far) for far in (1.5, 2.5, 3.5, 4.5)]
    assert numbers_of(closing_over(*several)) == ["1.5", "2.5", "3.5", "4.5"]
    loop: list[object] = list(range(5_000))
    loop[0] = loop
    assert len(numbers_of(lambda: loop)) == 1_000


def test_another_or_a_damaged_run_is_not_resumed(tmp_path):
    folder = tmp_path / "run"
    ck.train(ACROBOT, limits=[5, 5], iterations=2, out=folder, **SMALL)
    with pytest.raises(FileExistsError, match="already holds a run"):
        ck.train(ACROBOT, limits=[5, 5], iterations=2, out=folder, resume=False, **SMALL)
    with pytest.raises(TypeError, match="resume must be True or False, not 'no'"):
        ck.train(ACROBOT, limits=[5, 5], iterations=2, out=folder, resume="no", **SMALL)
    for change, what in (
        ({"seed": 4}, "seed"),
        ({"method": "crpo"}, "method"),
        ({"limits": [5, 6]}, "limits"),
        ({"measure": "step"}, "measure"),
        ({"radius": 0.1}, "options"),
    ):
        with pytest.raises(ValueError, match=f"another run, with {what}"):
            ck.train(ACROBOT, **{"limits": [5, 5], "out": folder, "resume": True, **SMALL, **change})
    checkpoint = folder / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-50])
    with pytest.raises(ValueError, match="damaged"):
        ck.train(ACROBOT, limits=[5, 5], out=folder, resume=True, **SMALL)
    checkpoint.write_bytes(b"\x80\x04pickle")
    with pytest.raises(ValueError, match="not a readable checkpoint"):
        ck.train(ACROBOT, limits=[5, 5], out=folder, resume=True, **SMALL)
    with pytest.raises(FileNotFoundError, match="no run"):
        ck.train(ACROBOT, limits=[5, 5], out=tmp_path / "nothing", resume=True, **SMALL)


# -- environments that fail ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trouble", "what"),
    [("raises", "the motor is gone"), ("nan observation", "observed"), ("nan cost", "every cost must be finite")],
)
def test_what_was_learned_survives_a_failing_environment(trouble, what, tmp_path):
    with pytest.raises(ck.TrainingFailed, match=what) as caught:
        ck.train(lambda: Coin(trouble), limits=[4.0], iterations=50, inner_steps=1, out=tmp_path / "run", **COIN)
    result = caught.value.result
    assert 1 <= result.iterations < 50
    assert "safe in" in str(caught.value)
    saved = ck.NeuralPolicy.load(tmp_path / "run" / "policy.npz")
    for (weight, bias), (kept_weight, kept_bias) in zip(saved.layers, result.policy.layers, strict=True):
        np.testing.assert_array_equal(weight, kept_weight)
        np.testing.assert_array_equal(bias, kept_bias)
    # repaired, the run continues from where it was
    longer = ck.train(
        lambda: Coin("none"), limits=[4.0], iterations=8, inner_steps=1, out=tmp_path / "run", resume=True, **COIN
    )
    assert longer.iterations == 8
    np.testing.assert_array_equal(longer.history["costs"][: result.iterations], result.history["costs"])


def test_environments_without_costs_and_odd_spaces_are_refused():
    with pytest.raises(RuntimeError, match="WithCosts"):
        ck.train("CartPole-v1", limits=[5.0], iterations=1, **SMALL)
    with pytest.raises(RuntimeError, match="reports 1 cost, but 2 limits were given"):
        ck.train(Coin, limits=[5.0, 5.0], iterations=1, **COIN)
    with pytest.raises(RuntimeError, match="0 limits were given"):
        ck.train(ACROBOT, iterations=1, **SMALL)
    with pytest.raises(TypeError, match="Box"):
        ck.train("FrozenLake-v1", limits=[5.0], iterations=1, **SMALL)
    with pytest.raises(TypeError, match="function that makes one"):
        ck.train(Coin(), limits=[5.0], iterations=1, **COIN)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"method": "ppo"}, "choose one of pmd-pd, .*, or pass a rule"),
        ({"iterations": -1}, "iterations"),
        ({"iterations": 2.5}, "iterations"),
        ({"seed": -1}, "seed"),
        ({"limits": 5.0}, "list"),
        ({"limits": [np.nan, 5]}, "limits"),
        ({"eta_dual": 0.0}, "eta_dual"),
        ({"eta_dual": [1.0, 1.0, 1.0]}, "eta_dual"),
        ({"radius": -1.0}, "radius"),
        ({"hidden": [0]}, "hidden"),
        ({"speed": 3}, "unknown option 'speed'"),
        ({"tolerance": 0.1}, "unknown option 'tolerance'"),
        ({"method": "crpo", "radii": [0.0]}, "radii"),
        ({"method": "crpo", "radii": []}, "radii"),
        ({"method": "crpo", "radii": 0.01}, "radii"),
        ({"method": "crpo", "radii": [np.nan]}, "radii"),
        ({"method": "crpo", "first": "no"}, "first"),
        ({"method": "npg-pd", "dual_cap": -1}, "dual_cap"),
        ({"method": "npg-pd", "dual_cap": np.nan}, "dual_cap"),
        ({"hidden": 16}, "hidden"),
        ({"normalise": "no"}, "normalise"),
        ({"resume": True}, "needs out"),
        ({"resume": False}, "needs out"),
        ({"tensorboard": True}, "needs out"),
        ({"time_limit": -1.0}, "time_limit"),
        ({"measure": "sum"}, "measure"),
        ({"gamma": 1.0}, "gamma"),
        ({"deviation": 0.01, "least_deviation": 0.5}, "deviation=0.01 starts below least_deviation=0.5.*smaller"),
        ({"deviation": 0.05}, "below least_deviation=0.1"),
        ({"least_deviation": 0.7}, "deviation=0.6 starts below"),
        ({"clip": 0.3}, "clip is an option of surrogate='clip'.*'trust-region', which this run uses"),
        ({"method": "focops", "clip": 0.3}, "clip is an option of surrogate='clip'.*'penalty', which"),
        ({"surrogate": "clip", "temperature": 1.0}, "temperature is an option of surrogate='penalty'"),
        ({"surrogate": "clip", "line_search": 5}, "line_search is an option of surrogate='trust-region'"),
        ({"policy_rate": 1e-3}, "policy_rate is an option of surrogate='clip' or 'penalty'"),
    ],
)
def test_bad_input_is_refused_before_any_work(settings, what):
    with pytest.raises((ValueError, TypeError), match=what):
        ck.train(ACROBOT, **{"limits": [5, 5], "iterations": 1, **SMALL, **settings})


def test_a_deviation_may_stay_where_it_starts():
    settings = ck.settings.NeuralSettings(deviation=0.05, least_deviation=0.05)
    assert settings.deviation == settings.least_deviation


@pytest.mark.parametrize("options", [{"surrogate": "clip", "clip": 0.3, "policy_epochs": 1}, {"line_search": 3}])
def test_options_of_the_surrogate_in_use_are_taken(options):
    assert ck.train(ACROBOT, "rcpo", limits=[5, 5], iterations=1, **SMALL, **options).iterations == 1


def test_without_limits_any_environment_will_do():
    result = ck.train("CartPole-v1", iterations=2, **SMALL)
    assert result.history["costs"].shape == (2, 0)


class Mixed(Coin):
    """Reports an int 0 now and then, and a list."""

    def __init__(self, plural=False):
        super().__init__()
        self.plural = plural

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        cost = 0 if self.time % 2 else 0.7
        return observation, reward, terminated, truncated, {"costs": [cost, 1]} if self.plural else {"cost": cost}


@pytest.mark.parametrize("plural", [False, True])
def test_costs_keep_their_fractions(plural):
    """A batch must not take the integer type of the first cost it sees."""
    result = ck.train(lambda: Mixed(plural), limits=[5.0] * (1 + plural), iterations=2, inner_steps=1, **COIN)
    assert result.history["costs"][0, 0] == pytest.approx(5 * 0.7)
    if plural:
        assert result.history["costs"][0, 1] == pytest.approx(10.0)


def test_a_callback_may_stop_with_numpys_truth():
    result = ck.train(ACROBOT, limits=[5, 5], iterations=6, callback=lambda row, n: row.costs[0] < 1000, **SMALL)
    assert result.status is ck.Status.INTERRUPTED
    assert result.iterations == 1


def test_a_failure_leaves_policy_and_history_together(tmp_path):
    with pytest.raises(ck.TrainingFailed) as caught:
        ck.train(lambda: Coin("raises"), limits=[4.0], iterations=50, inner_steps=2, out=tmp_path / "run", **COIN)
    result = caught.value.result
    assert result.steps == result.iterations * 500
    again = ck.train(lambda: Coin("none"), limits=[4.0], iterations=result.iterations, inner_steps=2, **COIN)
    np.testing.assert_array_equal(again.policy.layers[0][0], result.policy.layers[0][0])


def test_partial_functions_resume(tmp_path):
    for resume in (False, True):
        result = ck.train(
            partial(Coin, "none"), limits=[4.0], iterations=2 + 2 * resume, out=tmp_path / "r", resume=resume, **COIN
        )
    assert result.iterations == 4


def test_threads_are_given_back():
    import torch

    torch.set_num_threads(2)
    ck.train(ACROBOT, limits=[5, 5], iterations=1, **SMALL)
    assert torch.get_num_threads() == 2


def test_policies_refuse_other_observations():
    policy = coin_policy(0.5)
    assert np.shape(policy.act([1.0, 0.0])) == ()
    assert policy.act([[1.0, 0.0]] * 3).shape == (3,)
    for wrong in ([1.0], [1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0], [[1.0, 0.0, 3.0]]):
        with pytest.raises(ValueError, match="observations of 2 numbers"):
            policy.act(wrong)
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="not finite"):
            policy.act([[1.0, 0.0], [bad, 0.0]])
    with pytest.raises(ValueError, match="observations have 6 numbers"):
        ck.certify_on_episodes(ACROBOT, policy, [5.0, 5.0], episodes=2)


# -- certificates on episodes ----------------------------------------------------------------------------------------


def coin_policy(chance):
    """Action 1 with this probability, whatever is observed."""
    bias = np.array([0.0, np.log(chance / (1.0 - chance))], dtype=np.float32)
    from cmdpkit.learners.neural.policy import Actions

    return ck.NeuralPolicy([(np.zeros((2, 2)), bias)], Actions(True, 0, 1))


@pytest.mark.parametrize("bounds", [None, [(0.0, 1.0), (0.0, 1.0)]])
def test_episodes_judge_limits(bounds):
    policy = coin_policy(0.3)  # costs 3 an episode
    verdicts = {
        limit: ck.certify_on_episodes(Coin, policy, [limit], episodes=2_000, steps=10, bounds=bounds)
        for limit in (2.5, 3.0, 3.5)
    }
    assert [proof.verdicts for proof in verdicts.values()] == [["violated"], ["undecided"], ["satisfied"]]
    proof = verdicts[3.5]
    assert proof.satisfied
    assert proof.intervals[0, 0] <= 3.0 <= proof.intervals[0, 1]
    assert proof.objective_interval[0] <= 3.0 <= proof.objective_interval[1]
    assert proof.assumption == (NORMAL if bounds is None else "")
    assert verdicts[3.0].more_rollouts != [0]


@pytest.mark.parametrize(("measure", "most"), [("episode", 10.0), ("discounted", 10.0), ("step", 1.0)])
def test_intervals_on_episodes_stay_within_the_bounds(measure, most):
    bounds = [(0.0, 1.0), (0.0, 1.0)]
    proof = ck.certify_on_episodes(
        Coin, coin_policy(0.3), [3.0], measure, episodes=3, steps=10, gamma=0.9, bounds=bounds
    )
    assert proof.objective_interval == pytest.approx((0.0, most), abs=1e-12)
    assert proof.intervals[0] == pytest.approx((0.0, most), abs=1e-12)


def test_the_report_of_a_run_names_the_call_that_certifies_it(tmp_path):
    own = ck.train(Coin, limits=[3.0], iterations=1, out=tmp_path / "own", **SMALL)
    assert "cmdpkit.certify_on_episodes(Coin, result.policy, result.limits) certifies" in " ".join(str(own).split())
    named = ck.train(ACROBOT, limits=[5, 5], iterations=1, out=tmp_path / "named", **SMALL)
    assert f"cmdpkit evaluate {tmp_path / 'named'} certifies" in " ".join(str(named).split())


@pytest.mark.parametrize("bounds", [None, [(0.0, 1.0), (0.0, 1.0)]])
@pytest.mark.parametrize("measure", ["episode", "discounted", "step"])
def test_intervals_on_episodes_cover(measure, bounds):
    """Over many repetitions the intervals hold the truth at least as often as they promise."""
    policy, truth = coin_policy(0.3), {"episode": 3.0, "discounted": 0.3 * (1 - 0.9**10) / 0.1, "step": 0.3}[measure]
    held = 0
    for seed in range(60):
        proof = ck.certify_on_episodes(
            Coin, policy, [5.0], measure, 0.9, episodes=60, steps=10, gamma=0.9, bounds=bounds, num_envs=60, seed=seed
        )
        low, high = proof.intervals[0]
        reward_low, reward_high = proof.objective_interval
        held += low <= truth <= high and reward_low <= truth <= reward_high
    assert held >= 51  # 54 expected at least; 51 is 1.3 deviations below


def test_what_is_cut_off_is_not_forgotten():
    """A cost of 1 a step for ever: 20 discounted steps are far below the limit, the whole sum is not."""

    class Endless(Coin):
        def step(self, action):
            observation, reward, *_ = super().step(action)
            return observation, reward, False, False, {"cost": 1.0}

    settings = {"measure": "discounted", "steps": 20, "gamma": 0.98, "episodes": 200}
    policy = coin_policy(0.5)
    proof = ck.certify_on_episodes(Endless, policy, [30.0], bounds=[(0, 1), (0, 1)], **settings)
    assert proof.verdicts == ["undecided"]
    assert proof.intervals[0, 0] <= 50.0 <= proof.intervals[0, 1]
    assert "after the last step" in ck.certify_on_episodes(Endless, policy, [30.0], **settings).assumption
    with pytest.raises(ValueError, match="cost 1 left its bounds"):
        ck.certify_on_episodes(Endless, policy, [30.0], bounds=[(0, 1), (0, 0.5)], **settings)


def test_acrobot_knows_its_bounds():
    result = ck.train(ACROBOT, limits=[50, 50], iterations=1, **SMALL)
    proof = ck.certify_on_episodes(ACROBOT, result.policy, [50.0, 50.0], episodes=400)
    assert proof.assumption == ""
    assert proof.verdicts == ["violated", "violated"]
    with pytest.raises(ValueError, match="3 pairs"):
        ck.certify_on_episodes(ACROBOT, result.policy, [50.0, 50.0], episodes=50, bounds=[(0, 1)])


# -- the command line ------------------------------------------------------------------------------------------------

CLI = ("--limit", 5, "--limit", 5, "--hidden", 16, "--steps", 40, "--num-envs", 4)  # one hidden layer


def test_train_and_evaluate_on_the_command_line(tmp_path):
    run = program("train", ACROBOT, *CLI, "--seed", 3, "--iterations", 3, "--out", tmp_path / "run")
    assert run.code == 0, run.err
    assert "cost 2" in run.out
    refused = program("train", ACROBOT, *CLI, "--seed", 3, "--iterations", 3, "--out", tmp_path / "run", "--no-resume")
    assert refused.code == 2
    assert "--resume" in refused.err
    more = program(
        "train", ACROBOT, *CLI, "--seed", 3, "--iterations", 5, "--out", tmp_path / "run", "--resume", "--json"
    )
    assert more.code == 0, more.err
    assert more.json["iterations"] == 5
    again = program("train", ACROBOT, *CLI, "--seed", 3, "--iterations", 5, "--out", tmp_path / "run", "--json")
    assert again.code == 0, again.err
    assert again.json["iterations"] == 5  # a finished run is there already
    assert again.json["reward"] == more.json["reward"]
    # The exit code follows from the verdicts, and those from the policy that the folder holds
    proof = ck.certify_on_episodes(
        ACROBOT, ck.NeuralPolicy.load(tmp_path / "run" / "policy.npz"), [5.0, 5.0], episodes=30, steps=40
    )
    judged = program("evaluate", tmp_path / "run", "--episodes", 30)
    assert judged.code == (0 if proof.satisfied else 1)
    assert "fresh episodes" in judged.out
    judged = program("evaluate", tmp_path / "run", "--episodes", 30, "--json")
    assert judged.json == json.loads(json.dumps(proof.to_dict()))


def test_the_command_line_refuses_in_one_line(tmp_path):
    for arguments, what in (
        (("train", "NoSuchEnv-v0", "--limit", 5, "--out", tmp_path / "a"), "NoSuchEnv"),
        (("train", "CartPole-v1", "--limit", 5, "--iterations", 1, "--out", tmp_path / "b"), "WithCosts"),
        (("train", ACROBOT, "--limit", 5, "--iterations", 1, "--steps", 20, "--out", tmp_path / "c"), "2 costs"),
        (("train", ACROBOT, *CLI, "--set", "seed=3", "--out", tmp_path / "e"), "has its own flag"),
        (("evaluate", tmp_path / "nowhere"), "no run.json"),
        (("train", ACROBOT, *CLI, "--resume", "--out", tmp_path / "d"), "no run"),
        (("train", ACROBOT, *CLI, "--deviation", 0.01, "--least-deviation", 0.5), "starts below least_deviation=0.5"),
        (("train", ACROBOT, *CLI, "--clip", 0.3), "clip is an option of surrogate='clip'"),
    ):
        run = program(*arguments)
        assert run.code == 2
        assert what in run.err
        assert "Traceback" not in run.err
        assert run.err.count("\n") <= 2


def test_a_live_display_shows_costs_against_limits(tmp_path):
    code, screen, text = on_screen(
        *("train", ACROBOT, "--limit", 50, "--limit", 50, "--iterations", 12, "--steps", 200, "--out", tmp_path / "run")
    )
    assert code == 0
    assert re.search(r"<= 50", text)
    assert "steps per second" in text
    assert "left" in text
    assert screen.text.lstrip().startswith("mean of the last 12 iterations")  # the display is gone


def test_a_newcomers_environment_in_a_few_lines():
    """docs/neural.md shows this whole; it must run as it is."""
    from pathlib import Path

    page = (Path(__file__).parent.parent / "docs/neural.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL).group(1)
    assert len(code.splitlines()) <= 30
    names = {}
    exec(compile(code.replace("progress=True", "progress=False"), "docs/neural.md", "exec"), names)
    assert names["proof"].verdicts == ["satisfied"]


def test_costs_may_be_added_to_any_environment():
    def far(step):
        return abs(step.next_observation[0]) > 0.5

    result = ck.train(lambda: WithCosts(gymnasium.make("CartPole-v1"), far), limits=[10.0], iterations=2, **SMALL)
    assert result.history["costs"].shape == (2, 1)
    pendulum = ck.train(
        lambda: WithCosts(gymnasium.make("Pendulum-v1"), lambda step: abs(float(step.action[0]))),
        limits=[10.0],
        iterations=2,
        measure="step",
        **SMALL,
    )
    assert np.isfinite(pendulum.history["reward"]).all()
