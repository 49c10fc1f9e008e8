"""Checkpoints field by field: what a run remembers is in the file, comes back, and is refused when it is another's."""

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.files import load_arrays
from cmdpkit.learners.estimators import Meter, Pooled
from cmdpkit.learners.exact import ExactLearner
from cmdpkit.learners.sampled import SampledLearner
from cmdpkit.primal_dual import Iterate, primal_dual
from cmdpkit.rules import NPGPD, PMDPD, Weights
from cmdpkit.run.budget import Budget
from cmdpkit.run.checkpoint import Checkpoint
from cmdpkit.run.driver import Run
from cmdpkit.run.prover import Prover
from cmdpkit.run.recorder import ExactRecorder, Row, SampledRecorder, rows_as_columns, rows_from_columns
from cmdpkit.run.status import Status
from cmdpkit.simulators import ModelSimulator
from models import coupled

PAPER = ck.problems.paper()
UNIFORM = ck.TabularPolicy.uniform(20, 10)


def through_a_file(state, folder):
    """A state as a checkpoint gives it back."""
    store = Checkpoint(folder / "state.npz", {})
    store.save(lambda: state)
    return store.load()


def same_fields(one, other, names):
    for name in names:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def test_an_exact_learner_comes_back_field_by_field(tmp_path):
    """On a chain that is swept: accuracy, plan and known values decide what the next step costs and finds."""
    cmdp = coupled(600, 0.5, gamma=0.95)
    uniform = ck.TabularPolicy.uniform(600, 3)
    learner = ExactLearner(cmdp, uniform)
    learner.improve(Weights(1.0, np.full(2, 0.3), step=0.5, accuracy=1e-3))
    learner.state_values()
    state = learner.state()
    assert (state["accuracy"], state["plan"], state["values_are_current"]) == (1e-3, "sweeps", True)
    again = ExactLearner(cmdp, uniform)
    again.restore(through_a_file(state, tmp_path))
    same_fields(again, learner, ["accuracy", "state_visits", "occupancy", "_values", "_values_are_current"])
    np.testing.assert_array_equal(again.policy.log_probabilities, learner.policy.log_probabilities)
    assert again._plan.method == "sweeps"
    assert again.look().objective == learner.look().objective
    np.testing.assert_array_equal(again.look().values, learner.look().values)
    # known values are not computed again
    assert again.state_values() is again._values


def test_a_sampled_learner_comes_back_field_by_field(tmp_path):
    def make():
        return SampledLearner(Pooled(ModelSimulator(PAPER), 2, 50, Meter(3)), UNIFORM)

    learner = make()
    learner.look()
    learner.improve(Weights(1.0, np.zeros(1), inner_steps=2))
    learner.look()
    meter = learner.estimator.meter
    assert (meter.draws, meter.samples) == (3, 3 * 2 * 200)
    again = make()
    again.restore(through_a_file(learner.state(), tmp_path))
    assert (again.estimator.meter.draws, again.estimator.meter.samples, again.samples) == (3, 1200, 1200)
    np.testing.assert_array_equal(again.policy.log_probabilities, learner.policy.log_probabilities)
    np.testing.assert_array_equal(again.values, learner.values)
    same_fields(again.estimator, learner.estimator, ["first", "sums", "drawn"])
    np.testing.assert_array_equal(again.estimator.counts.toarray(), learner.estimator.counts.toarray())


def recorded(steps=3):
    learner = ExactLearner(PAPER, UNIFORM)
    recorder = ExactRecorder(PAPER, learner)
    for iterate, _ in zip(primal_dual(learner, PMDPD(1.0)), range(steps), strict=False):
        recorder.add(iterate, elapsed=float(iterate.k))
    return recorder


def test_a_record_comes_back_field_by_field(tmp_path):
    recorder = recorded()
    again = ExactRecorder(PAPER, recorder.learner)
    again.rows[:] = rows_from_columns(rows_as_columns(recorder.rows))
    again.restore(through_a_file(recorder.state(), tmp_path))
    same_fields(again, recorder, ["occupancy", "values", "weights", "last_weights"])
    assert (recorder.last_weights != 0.0).all()
    for column in recorder.history().columns:
        np.testing.assert_array_equal(again.history()[column], recorder.history()[column], err_msg=column)
    # what was taken does not change with the run
    state = recorder.state()
    kept = {name: np.copy(value) for name, value in state.items()}
    learner = recorder.learner
    recorder.add(Iterate(4, 1.0, np.ones(1), np.ones(1), Weights(1.0, np.ones(1)), 1, None), 4.0)
    assert learner is recorder.learner
    for name, value in kept.items():
        np.testing.assert_array_equal(state[name], value, err_msg=name)


def test_rows_come_back_field_by_field():
    rows = [
        Row(1.5, np.array([0.1, 0.2]), np.array([0.3, 0.4]), 2, 0.25, 100),
        Row(-2.5, np.array([-0.1, 0.7]), np.array([0.0, 0.9]), 3, 0.5, 250),
    ]
    for row, again in zip(rows, rows_from_columns(rows_as_columns(rows)), strict=True):
        for name in Row._fields:
            np.testing.assert_array_equal(getattr(again, name), getattr(row, name), err_msg=name)
        assert isinstance(again.samples, int)


def test_the_policies_of_a_mixture_come_back(tmp_path):
    learner = SampledLearner(Pooled(ModelSimulator(PAPER), 2, 50, Meter(3)), UNIFORM)
    recorder = SampledRecorder(PAPER, learner)
    tables = np.random.default_rng(0).dirichlet(np.ones(10), size=(3, 20))
    recorder.policies = [ck.TabularPolicy(table) for table in tables]
    again = SampledRecorder(PAPER, learner)
    again.restore(through_a_file(recorder.state(), tmp_path))
    assert len(again.mixture) == 3
    for one, two in zip(again.policies, recorder.policies, strict=True):
        np.testing.assert_array_equal(one.log_probabilities, two.log_probabilities)


@pytest.mark.parametrize("closest", [None, (0.25, np.array([0.75]))])
def test_a_prover_comes_back_field_by_field(closest, tmp_path):
    prover = Prover(PAPER, recorded(), 1e-6, 1e-6, lambda: False)
    prover.next_check, prover.next_refutation, prover.next_suspicion, prover.bound = 33, 80, 6, -4.5
    prover.multipliers, prover.closest = np.array([0.5]), closest
    again = Prover(PAPER, recorded(), 1e-6, 1e-6, lambda: False)
    again.restore(through_a_file(prover.state(), tmp_path))
    same_fields(again, prover, ["next_check", "next_refutation", "next_suspicion", "bound", "multipliers"])
    assert (again.closest is None) == (closest is None)
    if closest is not None:
        assert again.closest[0] == 0.25
        np.testing.assert_array_equal(again.closest[1], [0.75])


# -- the run -----------------------------------------------------------------------------------------------------------


class Memory:
    """An observer with a memory: how many iterates it has seen, and what it was told to return."""

    def __init__(self, verdicts=()):
        self.seen, self.verdicts = [], dict(verdicts)

    def __call__(self, iterate):
        self.seen.append(iterate.k)
        return self.verdicts.get(iterate.k)

    def state(self):
        return {"seen": np.array(self.seen)}

    def restore(self, state):
        self.seen = state["seen"].tolist()


def run(path, most, observers=(), learner=None):
    learner = ExactLearner(PAPER, UNIFORM) if learner is None else learner
    recorder = ExactRecorder(PAPER, learner)
    return Run(learner, NPGPD(1.0), recorder, Budget(most), list(observers), store=path and Checkpoint(path, {"a": 1}))


def test_a_run_comes_back_field_by_field(tmp_path):
    path = tmp_path / "run.npz"
    first = run(path, 4, [Memory()])
    assert first.go() is Status.ITERATION_LIMIT
    saved = load_arrays(path, "cmdpkit checkpoint")
    assert int(saved["steps"]) == 4
    np.testing.assert_array_equal(saved["rule_multipliers"], first.recorder.rows[-1].multipliers)
    np.testing.assert_array_equal(saved["row_objective"], [row.objective for row in first.recorder.rows])
    np.testing.assert_array_equal(saved["record_occupancy"], first.recorder.occupancy)
    np.testing.assert_array_equal(saved["learner_log_probabilities"], first.learner.policy.log_probabilities)
    # The observer's memory from before it saw the last iterate: after a restart it looks at that again
    np.testing.assert_array_equal(saved["observer_0_seen"], [1, 2, 3])

    memory = Memory()
    second = run(path, 6, [memory])
    assert second.steps == second.iterations == 4
    assert second.budget.elapsed >= first.recorder.rows[-1].time
    np.testing.assert_array_equal(second.recorder.occupancy, first.recorder.occupancy)
    second.go()
    assert memory.seen == [1, 2, 3, 4, 5, 6]
    whole = run(None, 6)
    whole.go()
    same_fields(second.recorder, whole.recorder, ["occupancy", "values", "weights", "last_weights"])
    np.testing.assert_array_equal(second._state.multipliers, whole._state.multipliers)


def test_time_goes_on_where_it_was(tmp_path):
    path = tmp_path / "run.npz"
    first = run(path, 2)
    first.budget.started -= 1_000.0  # as if it had taken that long
    first.go()
    assert run(path, 3).budget.elapsed >= 1_000.0
    assert run(path, 3).recorder.rows[-1].time >= 1_000.0


def test_an_observer_ends_the_run():
    ending = run(None, 100, [Memory(), Memory({3: Status.OPTIMAL}), Memory({3: Status.INFEASIBLE})])
    assert ending.go() is Status.OPTIMAL
    assert ending.iterations == 3


class Fragile(ExactLearner):
    """Fails in the middle of its third improvement, when the policy has moved already."""

    improvements = 0

    def improve(self, weights):
        steps = super().improve(weights)
        self.improvements += 1
        if self.improvements == 3:
            raise OSError("the wire is cut")
        return steps


def test_a_failure_puts_the_learner_back_to_the_last_whole_step(tmp_path):
    path = tmp_path / "run.npz"
    failing = run(path, 10, learner=Fragile(PAPER, UNIFORM))
    with pytest.raises(OSError, match="wire is cut"):
        failing.go()
    two = run(None, 2)
    two.go()
    assert failing.iterations == 2
    np.testing.assert_array_equal(failing.learner.policy.log_probabilities, two.learner.policy.log_probabilities)
    saved = load_arrays(path, "cmdpkit checkpoint")
    np.testing.assert_array_equal(saved["learner_log_probabilities"], two.learner.policy.log_probabilities)
    assert int(saved["steps"]) == 2


# -- the file ----------------------------------------------------------------------------------------------------------


def test_a_state_of_another_run_is_refused(tmp_path):
    path = tmp_path / "state.npz"
    Checkpoint(path, {"seed": 1, "method": "a"}).save(lambda: {"x": np.arange(3)})
    np.testing.assert_array_equal(Checkpoint(path, {"seed": 1, "method": "a"}).load()["x"], [0, 1, 2])
    with pytest.raises(ValueError, match="another run, with seed = 1 instead of 2"):
        Checkpoint(path, {"seed": 2, "method": "a"}).load()
    with pytest.raises(ValueError, match="with tol = null"):
        Checkpoint(path, {"seed": 1, "tol": 0.1}).load()


def test_resume_insists(tmp_path):
    store = Checkpoint(tmp_path / "state.npz", {})
    store.must(None)
    store.must(False)
    with pytest.raises(FileNotFoundError):
        store.must(True)
    store.save(lambda: {"x": np.zeros(1)})
    store.must(None)
    store.must(True)
    with pytest.raises(FileExistsError):
        store.must(False)


def test_a_slow_disk_takes_a_twentieth_of_the_time(tmp_path, monkeypatch):
    now = [1_000.0]
    monkeypatch.setattr("cmdpkit.run.checkpoint.time.perf_counter", lambda: now[0])
    written = []

    def write(path, kind, state):
        written.append(now[0])
        now[0] += 2.0  # seconds that it takes

    store = Checkpoint(tmp_path / "state.npz", {}, write=write)
    assert not store.is_due
    for _ in range(3_000):
        now[0] += 0.1
        store.save_when_due(lambda: {"x": 1})
    # after the first five seconds, then every 20 · 2 seconds
    np.testing.assert_allclose(np.diff(written), 42.0, atol=0.11)
    assert written[0] == pytest.approx(1_005.0, abs=0.11)


def test_a_full_disk_does_not_cost_the_run(tmp_path):
    def write(path, kind, state):
        raise OSError("no space left")

    store = Checkpoint(tmp_path / "state.npz", {}, write=write)
    with pytest.warns(UserWarning, match="could not be written: no space left"):
        store.save(lambda: {"x": 1})
    store.save(dict)  # nothing to write yet


@pytest.mark.parametrize("change", [{"tol": 1e-3}, {"limit": 2.9}, {"initial": 3}, {"gamma": 0.79}, {"cost": 1.1}])
def test_a_run_is_continued_on_the_same_model_only(change, tmp_path):
    def model(limit=3.0, initial=None, gamma=0.8, cost=1.0):
        P = np.asarray(PAPER.transitions).reshape(20, 10, 20)
        use = ck.AtLeast(cost * np.asarray(PAPER.constraints[0].values), limit)
        return ck.CMDP(P, reward=PAPER.objective, constraints=[use], gamma=gamma, initial=initial)

    settings = {"checkpoint": tmp_path / "run.npz", "max_iterations": 2, "step": 1.0}
    ck.solve(model(), "crpo", **settings)
    ck.solve(model(), "crpo", **settings, resume=True)
    changed = dict(change)
    tol = changed.pop("tol", 1e-6)
    with pytest.raises(ValueError, match=f"with {'tol' if 'tol' in change else 'model'} = "):
        ck.solve(model(**changed), "crpo", tol, **settings)


def test_methods_without_a_checkpoint_say_so(tmp_path):
    for method in ("pmd-pd-zero", "auto"):
        with pytest.raises(ValueError, match="keeps no checkpoint"):
            ck.solve(PAPER, method, checkpoint=tmp_path / "run.npz", max_iterations=2)
    assert not list(tmp_path.iterdir())
