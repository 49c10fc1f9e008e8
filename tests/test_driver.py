"""One driver for all learners: rules as instances, checkpoints of the rule's state, observers and callbacks."""

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.rules import State, View, Weights
from cmdpkit.rules.registry import methods, names
from cmdpkit.run.checkpoint import Checkpoint
from models import coupled

ACROBOT = "cmdpkit/ConstrainedAcrobot-v0"
SMALL = {"hidden": [8], "steps": 30, "num_envs": 2}
FEW = ck.Sampling(rollouts=5, value_rollouts=50)


# -- rules of one's own ----------------------------------------------------------------------------------------------


class Memory(NamedTuple):
    multipliers: np.ndarray
    count: int
    pace: float


@dataclass(frozen=True)
class Momentum:
    """Projected dual ascent whose step fades: not registered, and with a state of its own."""

    pace: float = 0.5

    def start(self, view: View) -> Memory:
        return Memory(np.zeros_like(view.values), 0, self.pace)

    def propose(self, state: Memory, view: View) -> tuple[Weights, Memory]:
        return Weights(1.0, state.multipliers), state

    def observe(self, state: Memory, view: View) -> Memory:
        lam = np.maximum(0.0, state.multipliers + state.pace * view.values)
        return Memory(lam, state.count + 1, 0.99 * state.pace)


class Plain:
    """Not even a dataclass."""

    def start(self, view):
        return ck.rules.State(np.zeros_like(view.values))

    def propose(self, state, view):
        return Weights(1.0, state.multipliers), state

    def observe(self, state, view):
        return state


@pytest.mark.parametrize("rule", [Momentum(), Plain()])
def test_a_rule_of_ones_own_runs_with_every_learner(rule):
    paper = ck.problems.paper()
    exact = ck.solve(paper, rule, max_iterations=20, tol=0.0, step=1.0)
    sampled = ck.solve(paper, rule, sampling=FEW, max_iterations=3)
    trained = ck.train(ACROBOT, rule, limits=[5, 5], iterations=2, **SMALL)
    for result in (exact, sampled, trained):
        assert result.method == type(rule).__name__
        assert result.history["multipliers"].shape[0] == result.iterations
    assert exact.history["multipliers"][0] == pytest.approx(
        np.maximum(0.0, 0.5 * (3.0 - exact.history["constraint_values"][0])) if isinstance(rule, Momentum) else 0.0
    )


@pytest.mark.parametrize(
    ("rule", "name", "options"),
    [
        (ck.rules.PMDPD(eta_dual=0.3), "pmd-pd", {"eta_dual": 0.3}),
        (ck.rules.NPGPD(dual_cap=2.0), "npg-pd", {"dual_cap": 2.0}),
        (ck.rules.CRPO(tolerance=-0.1, first=True), "crpo", {"tolerance": -0.1, "first": True}),
    ],
)
def test_an_instance_is_the_method_with_its_options(rule, name, options):
    paper = ck.problems.paper()
    for settings in ({"tol": 0.0}, {"sampling": FEW}):
        one = ck.solve(paper, rule, max_iterations=4, step=1.0, **settings)
        other = ck.solve(paper, name, max_iterations=4, step=1.0, **settings, **options)
        np.testing.assert_array_equal(one.history.multipliers, other.history.multipliers)
        np.testing.assert_array_equal(one.policy.log_probabilities, other.policy.log_probabilities)
        assert one.method == name
    one = ck.train(ACROBOT, rule, limits=[5, 5], iterations=2, **SMALL)
    other = ck.train(ACROBOT, name, limits=[5, 5], iterations=2, **SMALL, **options)
    np.testing.assert_array_equal(one.policy.layers[0][0], other.policy.layers[0][0])


def test_growing_steps_are_a_rule_like_any_other():
    default = ck.solve(ck.problems.paper(), "pmd-pd")
    instance = ck.solve(ck.problems.paper(), ck.rules.GrowingPMDPD())
    np.testing.assert_array_equal(default.history.multipliers, instance.history.multipliers)
    slower = ck.solve(ck.problems.paper(), ck.rules.GrowingPMDPD(growth=1.5))
    assert slower.status is ck.Status.OPTIMAL
    assert slower.iterations > default.iterations


@pytest.mark.parametrize(
    ("method", "options", "what"),
    [
        (ck.rules.PMDPD, {}, "the class PMDPD; make an instance"),
        (3.0, {}, "not float; a rule has start, propose and observe"),
        (ck.rules.PMDPD(eta_dual=-1.0), {}, "eta_dual must be positive"),
        (ck.rules.PMDPD(), {"eta_dual": 1.0}, r"belongs to the rule: PMDPD\(eta_dual=...\)"),
        (ck.rules.CRPO(), {"eta_dual": 1.0}, "unknown option 'eta_dual' for method 'crpo'"),
        ("crpo", {"nonsense": 1.0}, "unknown option 'nonsense' for method 'crpo'"),
    ],
)
def test_bad_rules_are_refused(method, options, what):
    with pytest.raises((ValueError, TypeError), match=what):
        ck.solve(ck.problems.paper(), method, **options)
    with pytest.raises((ValueError, TypeError), match=what):
        ck.train(ACROBOT, method, limits=[5, 5], iterations=1, **SMALL, **options)


@pytest.mark.parametrize(
    ("method", "settings"),
    [("crpo", {}), ("crpo", {"sampling": FEW}), (ck.rules.CRPO(), {}), (ck.rules.PMDPD(), {})],
)
def test_steps_are_refused_where_there_is_nothing_to_choose(method, settings):
    with pytest.raises(ValueError, match="unknown option 'steps'"):
        ck.solve(ck.problems.paper(), method, steps="growing", **settings)


@pytest.mark.parametrize("name", sorted({*names("sampled"), *names("neural")}))
def test_every_registered_method_runs_with_its_learners(name):
    paper = ck.problems.paper()
    if name in names("exact"):
        exact = ck.solve(paper, name, max_iterations=40)
        assert exact.iterations >= 1
        assert np.isfinite(exact.certificate.gap)
    if name in names("sampled"):
        assert ck.solve(paper, name, sampling=FEW, max_iterations=2).iterations == 2
    if name in names("neural"):
        assert ck.train(ACROBOT, name, limits=[5, 5], iterations=2, **SMALL).iterations == 2


def test_options_have_help_and_domains():
    for method in methods():
        for name, option in method.options.items():
            assert option.help[0].isupper(), (method.name, name)
            assert option.help.endswith((".", "]")), (method.name, name)
            assert option.domain.words


def costly_cart():
    return ck.envs.WithCosts(gymnasium.make("CartPole-v1"), lambda step: 1.0)


class Own:
    """Multipliers that stay at zero, unless a test returns something else in one place."""

    def __init__(self, function="", answer=None):
        self.function, self.answer = function, answer

    def start(self, view):
        return self.answer if self.function == "start" else State(np.zeros_like(view.values))

    def propose(self, state, view):
        return self.answer if self.function == "propose" else (Weights(1.0, state.multipliers), state)

    def observe(self, state, view):
        return self.answer if self.function == "observe" else state


@pytest.mark.parametrize(
    ("function", "answer", "message"),
    [
        ("start", None, "Own.start must return a state with a field 'multipliers', not None"),
        ("start", State(np.zeros(2)), r"Own.start returned multipliers of shape \(2,\); shape \(1,\) is needed"),
        ("propose", Weights(1.0, np.zeros(1)), "Own.propose must return a pair, Weights and the state"),
        ("propose", (Weights(1.0, np.zeros(5)), State(np.zeros(1))), r"the weights of the constraints of shape \(5,\)"),
        ("propose", (Weights(1.0, np.array([np.nan])), State(np.zeros(1))), "an entry that is not finite"),
        ("propose", (Weights(np.inf, np.zeros(1)), State(np.zeros(1))), "the weight of the objective"),
        ("observe", State(np.array([np.inf])), "Own.observe returned multipliers with an entry that is not finite"),
    ],
)
def test_what_an_own_rule_returns_is_checked(function, answer, message):
    """Weights of NaN made a policy of NaN, which was returned as the best so far."""
    for sampling in (None, FEW):
        with pytest.raises((TypeError, ValueError), match=message):
            ck.solve(ck.problems.paper(), Own(function, answer), step=1.0, max_iterations=2, sampling=sampling)
    with pytest.raises(ck.TrainingFailed, match=message):
        ck.train(costly_cart, Own(function, answer), limits=[5], iterations=1, **SMALL)
    assert ck.solve(ck.problems.paper(), Own(), step=1.0, max_iterations=2).iterations == 2


# -- checkpoints -----------------------------------------------------------------------------------------------------


def same(one, two):
    assert one.status is two.status
    for name in one.history.columns:
        if name != "time":
            np.testing.assert_array_equal(one.history[name], two.history[name], err_msg=name)
    np.testing.assert_array_equal(one.policy.log_probabilities, two.policy.log_probabilities)
    np.testing.assert_array_equal(one.average_policy.log_probabilities, two.average_policy.log_probabilities)
    assert one.certificate.to_dict() == two.certificate.to_dict()


@pytest.mark.parametrize(
    ("method", "options"),
    [("pmd-pd", {}), ("pmd-pd", {"steps": "fixed"}), ("npg-pd", {}), ("crpo", {}), (Momentum(), {"step": 1.0})],
)
@pytest.mark.parametrize("model", ["paper", "coupled"])
def test_an_exact_run_continues_to_the_same_result(method, options, model, tmp_path):
    """The rule's state is kept, not only its multipliers: steps that have grown go on from where they were."""
    cmdp = ck.problems.paper() if model == "paper" else coupled(600, 1e-3, gamma=0.95)
    settings = {**options, "max_iterations": 12}
    whole = ck.solve(cmdp, method, **settings)
    path = tmp_path / "run.npz"
    for stop in (2, 5, 9):
        part = ck.solve(cmdp, method, checkpoint=path, callback=lambda s, stop=stop: s.iteration >= stop, **settings)
        if part.status is not ck.Status.INTERRUPTED:
            break
        assert part.iterations == stop
    rest = ck.solve(cmdp, method, checkpoint=path, **settings)
    same(whole, rest)


KILLED = """
import sys, time
import cmdpkit as ck, cmdpkit.run.checkpoint
cmdpkit.run.checkpoint.SECONDS = 0.0
def tell(news):
    print(news.iteration, flush=True)
    time.sleep(float(sys.argv[2]))
cmdp = ck.problems.garnet(states=60, actions=4, seed=3)
ck.solve(cmdp, "npg-pd", checkpoint=sys.argv[1], max_iterations=40, callback=tell)
"""


def test_a_killed_exact_run_continues_to_the_same_result(tmp_path):
    path = tmp_path / "run.npz"
    for after in (5, 17):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(path), "0.01"], stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            if int(line) >= after:
                break
        process.kill()
        process.communicate()
    cmdp = ck.problems.garnet(states=60, actions=4, seed=3)
    rest = ck.solve(cmdp, "npg-pd", checkpoint=path, max_iterations=40, resume=True)
    same(ck.solve(cmdp, "npg-pd", max_iterations=40), rest)


def test_resume_means_the_same_everywhere(tmp_path):
    paper, path = ck.problems.paper(), tmp_path / "run.npz"
    for settings in ({}, {"sampling": FEW}):
        with pytest.raises(FileNotFoundError, match="no run in"):
            ck.solve(paper, "npg-pd", checkpoint=path, resume=True, max_iterations=2, **settings)
        ck.solve(paper, "npg-pd", checkpoint=path, resume=False, max_iterations=2, **settings)
        with pytest.raises(FileExistsError, match="already holds a run"):
            ck.solve(paper, "npg-pd", checkpoint=path, resume=False, max_iterations=2, **settings)
        again = ck.solve(paper, "npg-pd", checkpoint=path, max_iterations=3, **settings)
        assert again.iterations == 3
        with pytest.raises(ValueError, match="resume needs checkpoint"):
            ck.solve(paper, "npg-pd", resume=True, **settings)
        path.unlink()
    for method in ("auto", "lp", "columns", "pmd-pd-zero"):
        with pytest.raises(ValueError, match="keeps no checkpoint"):
            ck.solve(paper, method, checkpoint=path)


@pytest.mark.parametrize(
    "change",
    [
        {"eta_dual": 2.0},
        {"method": "crpo"},
        {"tol": 1e-3},
        {"model": ck.problems.garnet()},
        {"initial_multipliers": [0.5]},
        {"method": ck.rules.NPGPD(eta_dual=2.0)},
    ],
)
def test_the_checkpoint_of_another_exact_run_is_refused(change, tmp_path):
    path = tmp_path / "run.npz"
    ck.solve(ck.problems.paper(), "npg-pd", checkpoint=path, max_iterations=2)
    settings = {"model": ck.problems.paper(), "method": "npg-pd", "checkpoint": path, "max_iterations": 3} | change
    with pytest.raises(ValueError, match="belongs to another run"):
        ck.solve(settings.pop("model"), settings.pop("method"), **settings)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    path = tmp_path / "run.npz"
    ck.solve(ck.problems.paper(), "npg-pd", checkpoint=path, max_iterations=2)
    content = path.read_bytes()
    for size in range(0, len(content), max(1, len(content) // 40)):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match="not a readable cmdpkit file"):
            ck.solve(ck.problems.paper(), "npg-pd", checkpoint=path, max_iterations=3)
    path.write_bytes(content)
    with np.load(path) as stored:
        state = {name: stored[name] for name in stored.files if name not in ("kind", "run")}
        identity = json.loads(str(stored["run"]))
    for name in (
        "rule_multipliers",
        "rule_eta_dual",
        "learner_log_probabilities",
        "record_occupancy",
        "steps",
        "row_time",
    ):
        Checkpoint(path, identity).save(lambda name=name: {k: v for k, v in state.items() if k != name})
        with pytest.raises(ValueError, match="is damaged: the entry"):
            ck.solve(ck.problems.paper(), "npg-pd", checkpoint=path, max_iterations=3)


# -- callbacks -------------------------------------------------------------------------------------------------------


def test_callbacks_hear_the_same_of_every_learner():
    heard = {}
    paper = ck.problems.paper()
    ck.solve(paper, "npg-pd", max_iterations=2, tol=0.0, callback=lambda s: heard.setdefault("exact", s) and None)
    ck.solve(paper, sampling=FEW, max_iterations=2, callback=lambda s: heard.setdefault("sampled", s) and None)
    ck.train(ACROBOT, limits=[5, 5], iterations=2, callback=lambda s: heard.setdefault("neural", s) and None, **SMALL)
    assert len({type(news) for news in heard.values()}) == 1
    for name, news in heard.items():
        assert news.iteration == 1
        assert np.isfinite(news.objective)
        assert news.constraint_values.shape == news.multipliers.shape == ((2,) if name == "neural" else (1,))
        assert (news.samples is None) == (name == "exact")
    assert heard["neural"].verdict is not None


def test_older_callbacks_of_training_still_work():
    rows = []
    result = ck.train(ACROBOT, limits=[5, 5], iterations=2, callback=lambda row, n: rows.append((row, n)), **SMALL)
    assert [n for _, n in rows] == [1, 2]
    np.testing.assert_array_equal([row.reward for row, _ in rows], result.history["reward"])
    np.testing.assert_array_equal([row.costs for row, _ in rows], result.history["costs"])
    np.testing.assert_array_equal([row.steps for row, _ in rows], result.history["steps"])
