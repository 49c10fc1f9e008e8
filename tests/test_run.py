"""Runs: what callbacks and records hold, what ends a run, which steps are taken by default, and results in files."""

import json

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.certificates.rollouts import SimulationCertificate
from cmdpkit.exact.columns import ColumnSearch
from cmdpkit.files import load_arrays, save_arrays
from cmdpkit.learners.exact import ExactLearner
from cmdpkit.learners.plans import theorem_3
from cmdpkit.model import Problem
from cmdpkit.primal_dual import Iterate
from cmdpkit.rules import GrowingPMDPD, View, Weights
from cmdpkit.run.budget import Budget, Snapshot
from cmdpkit.run.choice import choose
from cmdpkit.run.finish import _seek_neighbourhood
from cmdpkit.run.first_order import exact_learner, scheduled_learner, with_start
from cmdpkit.run.history import History
from cmdpkit.run.prover import Prover
from cmdpkit.run.recorder import ExactRecorder, Row, snapshot
from cmdpkit.run.sampled import sampled_learner
from cmdpkit.run.status import Status
from cmdpkit.settings import Sampling, TabularSettings
from cmdpkit.simulators import ModelSimulator
from models import two_state

LIMITS = (
    ck.AtMost(None, 10.0, name="most"),
    ck.AtLeast(None, 0.5, name="least", per_step=True),
    ck.AtLeast(None, 4.0, name="more"),
)
PROBLEM = Problem.described(states=2, actions=2, gamma=0.8, maximise=True, constraints=LIMITS)


# -- what is told and remembered ---------------------------------------------------------------------------------------


def test_a_snapshot_by_hand():
    row = Row(-7.0, np.array([2.0, 0.1, -1.0]), np.array([0.5, 0.0, 0.25]), 1, 3.5, 90)
    news = snapshot(PROBLEM, row, iteration=4, bound=-8.0, samples=90)
    assert (news.iteration, news.objective, news.bound, news.time, news.samples) == (4, 7.0, 8.0, 3.5, 90)
    # 10 + 2, 0.5 − 0.1, 4 + 1;  violations 2 of 10, 0.1 of max(1, 0.5)
    np.testing.assert_allclose(news.constraint_values, [12.0, 0.4, 5.0])
    assert news.violation == pytest.approx(0.2)
    news.multipliers[:] = 99.0  # a callback may write into its copy
    np.testing.assert_array_equal(row.multipliers, [0.5, 0.0, 0.25])


def test_a_budget_by_hand():
    budget = Budget(max_iterations=3, time_limit=100.0)
    assert budget.spent(2) is None
    assert budget.spent(3) is Status.ITERATION_LIMIT
    budget.started -= 60.0
    assert budget.left == pytest.approx(40.0, abs=1.0)
    budget.started -= 60.0
    assert budget.left == 0.0
    assert budget.spent(2) is Status.TIME_LIMIT
    assert Budget().left is None


@pytest.mark.parametrize(
    ("answer", "stops"), [(True, True), (np.True_, True), (False, False), (None, False), (1, True), ("yes", False)]
)
def test_only_truth_stops_a_run(answer, stops):
    budget = Budget(watch=lambda news: answer)
    budget.tell(Snapshot(1, 0.0, 0.0, 0.0, np.zeros(0), 0.0))
    assert budget.interrupted is stops
    assert (budget.spent(0) is Status.INTERRUPTED) is stops


def test_a_record_of_tightened_limits_shows_the_limits_as_they_are():
    """The learner sees V_i + margin; what is recorded is V_i."""
    cmdp = two_state(gamma=0.9, limit=2.0)
    uniform = ck.TabularPolicy.uniform(2, 2)
    learner = ExactLearner(cmdp.tightened(0.5), uniform)
    recorder = ExactRecorder(cmdp, learner, np.array([0.5]))
    view = learner.look()
    recorder.add(Iterate(1, view.objective, view.values, np.zeros(1), Weights(2.0, np.array([3.0])), 1, None), 0.0)
    truth = ck.evaluate(cmdp, uniform)
    np.testing.assert_allclose(recorder.history().constraint_values[0], truth.constraint_values, rtol=1e-12)
    np.testing.assert_allclose(recorder.values[1:], truth.constraint_values - 2.0, rtol=1e-12)
    # weights 2 and 3 are a Lagrangian with the multiplier 3/2
    np.testing.assert_allclose(recorder.candidate_multipliers(), [[1.5], [1.5]])


def test_averages_by_hand():
    cmdp = two_state()
    learner = ExactLearner(cmdp, ck.TabularPolicy.uniform(2, 2))
    recorder = ExactRecorder(cmdp, learner)
    for k, (v_0, v) in enumerate([(-4.0, 3.0), (-8.0, -2.0), (-9.0, -4.0)], start=1):
        learner.discounted_costs = v + cmdp.offsets
        recorder.add(Iterate(k, v_0, np.array([v]), np.zeros(1), Weights(1.0, np.zeros(1)), 1, None), 0.0)
    history = recorder.history()
    np.testing.assert_allclose(history.objective, [4.0, 8.0, 9.0])
    np.testing.assert_allclose(history.average_objective, [4.0, 6.0, 7.0])
    np.testing.assert_allclose(history.average_constraint_values[:, 0], [5.0, 2.5, 1.0])
    np.testing.assert_allclose(history.violation, [3.0, 0.0, 0.0])
    np.testing.assert_allclose(history.average_violation, [3.0, 0.5, 0.0])
    np.testing.assert_allclose(recorder.occupancy, 3.0 * learner.occupancy)


# -- what ends a run ---------------------------------------------------------------------------------------------------


def prover_of(cmdp, last, average, tol=1e-3, allowed=None):
    """A prover whose run ended with these two policies."""
    recorder = ExactRecorder(cmdp, ExactLearner(cmdp, ck.TabularPolicy(last)))
    occupancy = ck.evaluate(cmdp, average)
    recorder.occupancy[:] = occupancy.occupancy
    values = ck.evaluate(cmdp, last)
    v_0, v = cmdp.sense * values.objective, cmdp.signs * (values.constraint_values - cmdp.limits)
    recorder.rows.append(Row(v_0, v, np.zeros(1), 1, 0.0))
    recorder.values[:] = np.append(
        cmdp.sense * occupancy.objective, cmdp.signs * (occupancy.constraint_values - cmdp.limits)
    )
    return Prover(cmdp, recorder, tol, tol if allowed is None else allowed, lambda: False)


def risk(p):
    return [[1.0 - p, p], [0.5, 0.5]]


def test_a_safe_policy_is_preferred_to_a_better_one():
    """The optimum takes the risk with probability 0.2439; a little more is nearly optimal, but not safe."""
    best = 2.0 * 0.1 / (1.0 - 2.0 * 0.9 * 0.1)
    prover = prover_of(two_state(0.9, 2.0), last=risk(best + 1e-3), average=risk(0.9 * best), allowed=0.0)
    found = prover.conclude()
    np.testing.assert_allclose(found.policy.probabilities, risk(0.9 * best), atol=1e-9)
    # where both are safe enough, the better one
    prover = prover_of(two_state(0.9, 2.0), last=risk(best + 1e-3), average=risk(0.9 * best), allowed=0.1)
    np.testing.assert_allclose(prover.conclude().policy.probabilities, risk(best + 1e-3), atol=1e-9)


def test_the_best_bound_is_kept():
    """G(λ) of the two-state model at λ = 0.1 is the optimum, 10.2; at 0 and 1 it is worse."""
    prover = prover_of(two_state(0.9, 2.0), last=risk(0.2), average=risk(0.2))
    for lam in (1.0, 0.1, 0.0, 0.5):
        prover._ask(np.array([lam]))
    assert -prover.bound == pytest.approx(10.2, rel=1e-9)
    np.testing.assert_array_equal(prover.multipliers, [0.1])


def test_small_costs_are_proved_relative_to_their_size():
    """Rewards of 1e-6: a gap of half of that is far below tol, and proves nothing."""
    cmdp = ck.CMDP(np.ones((1, 2, 1)), reward=[[0.0, 1e-6]], gamma=0.0)
    assert float(cmdp.fine_scales[0]) == pytest.approx(1e-6)
    recorder = ExactRecorder(cmdp, ExactLearner(cmdp, ck.TabularPolicy([[0.5, 0.5]])))
    prover = Prover(cmdp, recorder, 1e-3, 1e-3, lambda: False)
    half = ck.certify(cmdp, [[0.5, 0.5]])
    assert half.optimal(1e-3)
    assert not prover._proved(half)
    assert prover._proved(ck.certify(cmdp, [[1e-5, 1.0 - 1e-5]]))


def test_runaway_weights_refute():
    """V_c ≤ −1 is impossible: the weights of the constraint are a proof."""
    cmdp = two_state(0.9, limit=-1.0)
    prover = prover_of(cmdp, last=risk(0.1), average=risk(0.1))
    prover.recorder.last_weights = np.array([1.0, 50.0])
    found = prover._refute()
    assert found.status is Status.INFEASIBLE
    # no risk at all still misses the limit by 1
    assert found.certificate.infeasibility_margin == pytest.approx(1.0, rel=1e-9)
    np.testing.assert_allclose(found.certificate.infeasibility, [1.0])


@pytest.mark.parametrize("method", ["lp", "columns"])
def test_nothing_is_optimal_without_a_proof(method):
    """With a tolerance of 0 no certificate can show it, because rounding is part of every gap."""
    result = ck.solve(ck.problems.paper(), method, tol=0.0)
    assert result.status is Status.NUMERICAL_ERROR
    assert 0.0 < result.certificate.gap < 1e-9


@pytest.mark.parametrize("method", ["auto", "columns", "lp"])
def test_the_policy_of_an_infeasible_model_is_the_one_described(method):
    """The largest of its violations is as small as any policy's, and its certificate is its own."""
    rng = np.random.default_rng(1)
    limits = [ck.AtMost(rng.uniform(0.5, 1.0, (4, 3)), 3.0, name=f"c{i}") for i in range(2)]
    cmdp = ck.CMDP(rng.dirichlet(np.ones(4), (4, 3)), reward=rng.random((4, 3)), constraints=limits, gamma=0.9)
    result = ck.solve(cmdp, method)
    assert result.status is Status.INFEASIBLE
    truth = ck.evaluate(cmdp, result.policy)
    assert result.objective == pytest.approx(truth.objective)
    np.testing.assert_allclose(result.constraint_values, truth.constraint_values)
    assert result.violations.max() == pytest.approx(-ck.slater_margin(cmdp), rel=1e-6)


def test_the_neighbourhood_enters_with_its_own_values():
    """Columns that `auto` begins with: the values of PMD-PD's last and average policies, to the last digit."""
    cmdp = ck.problems.garnet(30, constraints=2, seed=1)
    search = ColumnSearch(cmdp, 1e-6)
    _seek_neighbourhood(search, Budget())
    assert len(search.columns) == 2
    for policy, values in zip(search.columns, search.values, strict=True):
        truth = ck.evaluate(cmdp, policy)
        np.testing.assert_allclose(values, [-truth.objective, *(truth.constraint_values - cmdp.limits)], rtol=1e-9)


# -- default steps -----------------------------------------------------------------------------------------------------


def wide(reward=2.0, cost=8.0):
    limits = [ck.AtMost([[0.0, cost]], 1.0)]
    return ck.CMDP(np.ones((1, 2, 1)), reward=[[0.0, reward]], constraints=limits, gamma=0.5)


def learner_of(cmdp, method, **options):
    choice = with_start(choose(method, options, "exact", TabularSettings, cmdp.num_constraints), cmdp)
    return exact_learner(cmdp, choice, 1e-6)


def test_default_steps_follow_the_costs_that_are_stepped_on():
    """5 / span: of the objective, or of the largest cost where a constraint is stepped on by itself."""
    assert learner_of(wide(), "npg-pd").step == pytest.approx(5.0 / 2.0)
    assert learner_of(wide(), "crpo").step == pytest.approx(5.0 / 8.0)
    assert learner_of(wide(reward=9.0), "crpo").step == pytest.approx(5.0 / 9.0)
    assert learner_of(wide(), "crpo", step=0.3).step == 0.3


def test_default_steps_from_samples():
    """1 / span of what the bounds allow; limits are spread over the steps, which changes no span."""

    def step(method):
        choice = with_start(choose(method, {}, "sampled", TabularSettings, 1), wide())
        simulator = ck.Simulator(
            lambda *_: None, lambda *_: None, states=1, actions=2, gamma=0.5,
            constraints=[ck.AtMost(None, 1.0)], bounds=[(0.0, 2.0), (0.0, 8.0)],
        )  # fmt: skip
        return sampled_learner(simulator, choice, Sampling(), None, Budget(), None)[0].step

    assert step("npg-pd") == pytest.approx(1.0 / 2.0)
    assert step("crpo") == pytest.approx(1.0 / 8.0)


def test_the_theorem_ends_no_later_than_it_is_told_to():
    """Its K macro steps, or fewer where that is asked for."""
    limits = [ck.AtMost([[0.0, 1.0]], 1.0)]
    cmdp = ck.CMDP(np.ones((1, 2, 1)), reward=[[0.0, 1.0]], constraints=limits, gamma=0.5)
    simulator, sampling = ModelSimulator(cmdp), Sampling(schedule="theory", epsilon=0.5)
    choice = with_start(choose("pmd-pd", {}, "sampled", TabularSettings, 1), cmdp)
    theorem = theorem_3(simulator, sampling, 1.0)
    assert theorem.macro_steps > 3
    for most, expected in ((None, theorem.macro_steps), (3, 3), (10**9, theorem.macro_steps)):
        budget = Budget(most)
        learner, chosen = sampled_learner(simulator, choice, sampling, None, budget, 1.0)
        assert budget.max_iterations == expected
        assert (learner.step, learner.alpha) == (theorem.schedule.step, theorem.schedule.alpha)
        assert chosen.rule.inner_steps(np.ones(1)) == theorem.schedule.inner_steps(np.ones(1)) > 1


def test_the_entropy_bonus_leaves_room_for_a_proof():
    """α log|A| / (1 − γ) ≤ tol/2."""
    plain = ck.CMDP(np.ones((1, 2, 1)), reward=[[0.0, 3.0]], gamma=0.5)
    learner = learner_of(plain, "npg-entropy")
    assert learner.alpha == pytest.approx(0.5e-6 * 0.5 / np.log(2.0))
    assert learner.step == pytest.approx(1.0 / learner.alpha)


def test_the_theorem_decides_on_inner_steps():
    cmdp = ck.problems.paper()
    given = choose("pmd-pd", {"schedule": "theory"}, "exact", TabularSettings, 1)
    _, choice = scheduled_learner(cmdp, with_start(given, cmdp), 10)
    few, many = (choice.rule.inner_steps(np.array([lam])) for lam in (0.0, 100.0))
    assert 1 < few < many


class Response:
    soft_minimum = 0.0
    values = np.zeros(1)
    gram = np.zeros((1, 1))


class FarView(View):
    visit_error = 0.0
    divergence = 0.0

    def response(self, prices, step, keep_anchor=False):
        return Response()

    def greedy_gain(self, multipliers):
        return 1.0


def test_growing_steps_by_hand():
    """Both steps grow fivefold, far from the optimum; scales 4 and 2, γ = 0.9: steps 10/4 and 10·0.1·4/2² at first."""
    view = FarView(0.0, np.array([3.0]), np.array([4.0, 2.0]), 0.9)
    rule = GrowingPMDPD()
    state = rule.start(view)
    assert (state.step, state.eta_dual[0]) == (pytest.approx(2.5), pytest.approx(1.0))
    state = rule.observe(state, view)
    assert (state.step, state.eta_dual[0]) == (pytest.approx(12.5), pytest.approx(5.0))
    # greedy gain 1, no multiplier, violation 3 in units of 4/2
    assert state.distance == pytest.approx(1.0 + 0.0 + 6.0)
    slack = FarView(0.0, np.array([-3.0]), np.array([4.0, 2.0]), 0.9)
    assert rule.observe(state._replace(multipliers=np.array([0.5])), slack).distance == pytest.approx(1.0 + 1.5)
    # the implicit step in which nothing responds is the explicit one, in the user's units: λ + η′ V = 0 + 1 · 3
    weights, _ = rule.propose(rule.start(view), FlatView(0.0, np.array([3.0]), np.array([4.0, 2.0]), 0.9))
    assert weights.constraints[0] == pytest.approx(3.0)
    assert weights.step == pytest.approx(2.5)


class FlatView(FarView):
    """Whatever is done, the values stay: then V(π⁺) = V."""

    def response(self, prices, step, keep_anchor=False):
        answer = Response()
        answer.values = self.units * self.values
        answer.soft_minimum = 0.0
        return answer


# -- learned from samples ----------------------------------------------------------------------------------------------


def test_violations_of_a_sampled_result_have_the_users_sense():
    """One state: action 1 always. Values 2·0.3 and 2·0.4; at most 0.5 is violated by 0.1, at least 1 by 0.2."""
    simulator = ck.Simulator(
        lambda s, a, rng: (s, np.stack([np.ones(s.size), np.full(s.size, 0.3), np.full(s.size, 0.4)])),
        lambda n, rng: np.zeros(n, int), states=1, actions=1, gamma=0.5,
        constraints=[ck.AtMost(None, 0.5, name="a"), ck.AtLeast(None, 1.0, name="b")],
        bounds=[(0.0, 1.0), (0.0, 1.0), (0.0, 1.0)],
    )  # fmt: skip
    few = ck.Sampling(rollouts=1, value_rollouts=2, certificate_rollouts=50, horizon=60)
    result = ck.solve(simulator, sampling=few, max_iterations=1)
    np.testing.assert_allclose(result.constraint_values, [0.6, 0.8], atol=2e-2)
    np.testing.assert_allclose(result.violations, [0.1, 0.2], atol=2e-2)


def test_an_impossible_limit_is_reported_when_the_model_is_known():
    few = ck.Sampling(rollouts=1, value_rollouts=5)
    result = ck.solve(two_state(0.9, limit=-1.0), sampling=few, max_iterations=2)
    assert result.status is Status.INFEASIBLE


# -- results in files --------------------------------------------------------------------------------------------------


def a_result(**changes):
    policies = [ck.TabularPolicy([[0.25, 0.75], [0.5, 0.5]]), ck.TabularPolicy([[1.0, 0.0], [0.0, 1.0]])]
    proof = SimulationCertificate(
        confidence=0.9, objective=1.5, objective_interval=(1.0, 2.0), constraint_values=np.array([1.0, 2.0, 3.0]),
        intervals=np.arange(6.0).reshape(3, 2), verdicts=["satisfied", "violated", "undecided"],
        more_rollouts=[0, 0, 7], rollouts=10, horizon=5, samples=50,
    )  # fmt: skip
    return ck.Result(
        status=Status.SAMPLE_LIMIT, policy=policies[0], objective=1.5, constraint_values=np.array([1.0, 2.0, 3.0]),
        violations=np.array([0.0, 0.5, 1.0]), multipliers=np.array([0.1, 0.2, 0.3]),
        history=History({"objective": np.array([1.0, 1.5])}), iterations=2, time=0.5, method="crpo", message="words",
        samples=50, certificate=proof, model=PROBLEM, last_policy=policies[0],
        average_policy=ck.MixturePolicy(policies, [0.9, 0.1]), average_certificate=proof,
    )  # fmt: skip


def test_a_result_comes_back_field_by_field(tmp_path):
    result = a_result()
    result.save(tmp_path / "run.npz")
    loaded = ck.Result.load(tmp_path / "run.npz")
    for name in ("status", "objective", "iterations", "time", "method", "message", "samples"):
        assert getattr(loaded, name) == getattr(result, name)
    for name in ("constraint_values", "violations", "multipliers"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(result, name))
    np.testing.assert_array_equal(loaded.history.objective, [1.0, 1.5])
    np.testing.assert_array_equal(loaded.average_policy.weights, [0.9, 0.1])
    for mine, other in zip(loaded.average_policy.policies, result.average_policy.policies, strict=True):
        np.testing.assert_array_equal(mine.log_probabilities, other.log_probabilities)
    assert loaded.certificate.objective_interval == (1.0, 2.0)
    assert isinstance(loaded.certificate.objective_interval, tuple)
    assert loaded.certificate.to_dict() == result.certificate.to_dict()
    for mine, other in zip(loaded.model.constraints, LIMITS, strict=True):
        assert type(mine) is type(other)
        assert (mine.name, mine.limit, mine.per_step) == (other.name, other.limit, other.per_step)
    assert (loaded.model.states, loaded.model.gamma, loaded.model.maximise) == (2, 0.8, True)
    np.testing.assert_array_equal(loaded.model.units, PROBLEM.units)


def test_a_result_of_another_version_is_refused(tmp_path):
    path = tmp_path / "run.npz"
    a_result().save(path)
    arrays = load_arrays(path, "cmdpkit result")
    plain = json.loads(str(arrays["plain"]))
    for change, what in (({"version": 3}, "format version is 3"), ({"class": "TrainingResult"}, "holds a Training")):
        content = {name: value for name, value in arrays.items() if name != "kind"}
        save_arrays(path, "cmdpkit result", content | {"plain": np.array(json.dumps(plain | change))})
        with pytest.raises(ValueError, match=what):
            ck.Result.load(path)


# -- runs that end without a proof of their own ------------------------------------------------------------------------


def touching(state_costs, limit):
    """Two states that keep their state, both actions alike in state 0: limits that touch what is possible."""
    P = np.zeros((2, 2, 2))
    P[0, 0, 0] = P[0, 1, 1] = P[1, :, 1] = 1.0
    return ck.CMDP(P, cost=[[1.0, 0.0], [0.0, 0.0]], constraints=[ck.AtMost(state_costs, limit)], gamma=0.9, initial=0)


def test_the_bound_nearest_to_the_objective_is_the_proof():
    """A policy that exceeds a limit by rounding: the largest bound, at a steep price, lies far above its objective."""
    cmdp = touching([[0.0, 1.0], [0.0, 0.0]], 0.5)
    learner = ExactLearner(cmdp, ck.TabularPolicy([[0.5, 0.5], [0.5, 0.5]]))
    prover = Prover(cmdp, ExactRecorder(cmdp, learner), 1e-6, 1e-6, lambda: False)
    prover.bound, prover.multipliers = 7.0, np.array([1e12])
    prover.asked = [(7.0, np.array([1e12])), (0.4, np.zeros(1)), (-3.0, np.ones(1))]
    certificate = prover._certificate(learner.policy, 0.5)
    assert certificate.bound == 0.4
    np.testing.assert_array_equal(certificate.multipliers, [0.0])
    other = Prover(cmdp, ExactRecorder(cmdp, learner), 1e-6, 1e-6, lambda: False)
    other.restore(prover.state())
    assert other._certificate(learner.policy, 0.5).to_dict() == certificate.to_dict()


def test_columns_finish_a_run_of_the_default_length(monkeypatch):
    """The policy and its proof are from the columns; iterations, history and iterates are those of PMD-PD."""
    monkeypatch.setattr("cmdpkit.solver.GROWING_ITERATIONS", 2)
    cmdp = ck.problems.paper()
    result, plain = ck.solve(cmdp, "pmd-pd"), ck.solve(cmdp, "pmd-pd", max_iterations=2)
    assert plain.status is ck.Status.ITERATION_LIMIT  # two steps were asked for, and are all there is
    assert result.status is ck.Status.OPTIMAL
    assert "exact columns" in result.message
    assert result.iterations == 2
    assert ck.certify(cmdp, result.policy, result.multipliers).optimal(1e-6)
    for one in ("last_policy", "average_policy"):
        np.testing.assert_array_equal(getattr(result, one).log_probabilities, getattr(plain, one).log_probabilities)
    for column in ("objective", "constraint_values", "multipliers"):
        np.testing.assert_array_equal(result.history[column], plain.history[column])
    assert ck.solve(cmdp, "pmd-pd", tol=0.0).status is ck.Status.ITERATION_LIMIT


def test_columns_refute_limits_for_a_run_of_the_default_length(monkeypatch):
    monkeypatch.setattr("cmdpkit.solver.GROWING_ITERATIONS", 1)
    cmdp = ck.problems.paper().tightened(1e3)
    result = ck.solve(cmdp, "pmd-pd")
    assert result.status is ck.Status.INFEASIBLE
    assert result.iterations == 1
    assert result.certificate.infeasibility is not None
