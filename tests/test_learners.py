"""The contract between rules and learners: every learner honours every field of `Weights`, or refuses it."""

from typing import Any

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.learners.estimators import Meter, Pooled, Rollouts
from cmdpkit.learners.exact import ExactLearner
from cmdpkit.learners.neural.learner import NeuralLearner
from cmdpkit.learners.plans import Practical
from cmdpkit.learners.sampled import SampledLearner
from cmdpkit.learners.tabular import above_floor, within_radius
from cmdpkit.rules.base import Weights
from cmdpkit.simulators import ModelSimulator

PAPER = ck.problems.paper()
START = ck.TabularPolicy(np.random.default_rng(0).dirichlet(np.ones(10), size=20))


def exact():
    return ExactLearner(PAPER, START, step=1.0)


def rollouts():
    plan = Practical(200, 200, 15)
    return SampledLearner(Rollouts(ModelSimulator(PAPER), plan, Meter(3)), START, step=1.0)


def pooled():
    return SampledLearner(Pooled(ModelSimulator(PAPER), 200, 200, Meter(3)), START, step=1.0)


def neural():
    return NeuralLearner("cmdpkit/ConstrainedAcrobot-v0", [50, 50], steps=200, hidden=[16], seed=1)


LEARNERS = {"exact": exact, "rollouts": rollouts, "pooled": pooled, "neural": neural}
TABULAR = ["exact", "rollouts", "pooled"]


def parameters(learner):
    return learner.theta.numpy() if isinstance(learner, NeuralLearner) else learner.policy.log_probabilities


def moved(make, **fields):
    """The learner after a step with these fields, and how its parameters have moved."""
    learner = make()
    before = parameters(learner).copy()
    m = learner.look().values.size
    # Acrobot's first rollouts earn nothing: there a cost is what can be learned from.
    mix = {"objective": 0.0, "constraints": np.eye(m)[0]} if isinstance(learner, NeuralLearner) else {}
    given = {"objective": 1.0, "constraints": np.zeros(m), "inner_steps": 1, **mix, **fields}
    count = learner.improve(Weights(**given))
    return learner, parameters(learner) - before, count


def divergence(learner, new):
    """Mean (neural, exact) or largest (sampled) KL(old ‖ new), computed from the policies alone."""
    if isinstance(learner, NeuralLearner):
        return learner.updates[-1].divergence
    old = START
    per_state = (old.probabilities * (old.log_probabilities - new.log_probabilities)).sum(axis=1)
    if isinstance(learner, SampledLearner):
        return per_state.max()
    visits = ck.evaluate(PAPER, old).occupancy.sum(axis=1)
    return visits @ per_state


@pytest.mark.parametrize("name", LEARNERS)
def test_objective_and_constraints_decide_the_direction(name):
    """Two mixes of costs move the policy differently, and twice the mix is the same direction."""
    m = 2 if name == "neural" else 1
    one, another = (1.0, np.zeros(m)), (0.0, np.eye(m)[0])
    if name == "neural":
        one, another = another, (0.0, np.eye(m)[1])
    first, other, double = (
        moved(LEARNERS[name], radius=1e-3, objective=objective, constraints=constraints)[1]
        for objective, constraints in (one, another, (2.0 * one[0], 2.0 * one[1]))
    )

    def cosine(one, two):
        return float((one * two).sum() / np.linalg.norm(one) / np.linalg.norm(two))

    assert cosine(first, other) < 0.9
    assert cosine(first, double) > 0.99


@pytest.mark.parametrize("name", LEARNERS)
def test_step_is_the_size_of_the_step(name):
    """Half the step moves the parameters half as far, to first order; none does not move them at all."""
    size = 0.02 if name == "neural" else 1e-3  # a network's surrogate is judged in single precision
    small, half, none = (moved(LEARNERS[name], step=step, radius=10.0)[1] for step in (size, 0.5 * size, 0.0))
    assert np.abs(small).max() > 0.0
    np.testing.assert_allclose(half, 0.5 * small, rtol=0.02, atol=0.01 * np.abs(small).max())
    np.testing.assert_allclose(none, 0.0, atol=1e-15)


def test_step_means_the_same_to_all_tabular_learners():
    """π is multiplied by exp(−step · Q): the advantages of the model, whoever estimates them."""
    q = ck.evaluate(PAPER, START).action_values[0]
    advantage = -(q - (START.probabilities * q).sum(axis=1, keepdims=True))  # a reward is minimised as a cost
    for name, tolerance in (("exact", 1e-3), ("rollouts", 0.2), ("pooled", 0.2)):
        _, change, _ = moved(LEARNERS[name], step=0.01)
        centred = change - (START.probabilities * change).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(centred, -0.01 * advantage, atol=0.01 * tolerance)


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("radius", [1e-4, 1e-3])
def test_radius_bounds_the_divergence(name, radius):
    learner, change, _ = moved(LEARNERS[name], radius=radius)
    assert np.abs(change).max() > 0.0
    found = divergence(learner, learner.policy)
    assert 0.3 * radius <= found <= radius * (1.0 + 1e-9)
    if name in TABULAR:  # which find the boundary by bisection: of the mean (exact), or of the largest (sampled)
        assert found == pytest.approx(radius, rel=1e-6)


@pytest.mark.parametrize("name", TABULAR)
def test_a_radius_that_does_not_bind_changes_nothing(name):
    _, free, _ = moved(LEARNERS[name], step=0.01)
    _, bound, _ = moved(LEARNERS[name], step=0.01, radius=1e6)
    np.testing.assert_array_equal(free, bound)


@pytest.mark.parametrize("name", LEARNERS)
def test_inner_steps_are_taken_and_counted(name):
    _, once, one = moved(LEARNERS[name], inner_steps=1, radius=1e-3)
    _, twice, two = moved(LEARNERS[name], inner_steps=2, radius=1e-3)
    _, never, zero = moved(LEARNERS[name], inner_steps=0)
    assert (zero, one, two) == (0, 1, 2)
    assert not np.array_equal(once, twice)
    np.testing.assert_array_equal(never, np.zeros_like(never))


@pytest.mark.parametrize("name", LEARNERS)
def test_accuracy_is_an_error_that_is_allowed(name):
    """A learner may be more exact than it must: what it does differs by no more than the error explains."""
    _, exactly, _ = moved(LEARNERS[name], step=0.1, accuracy=0.0)
    _, roughly, _ = moved(LEARNERS[name], step=0.1, accuracy=1e-3)
    largest = np.abs(PAPER.costs[0]).max() / (1.0 - PAPER.gamma)
    assert np.abs(roughly - exactly).max() <= 2.0 * 0.1 * 1e-3 * largest


def test_accuracy_saves_work_where_sweeps_are_used():
    """On a large model a rough evaluation is another evaluation, within its error."""
    cmdp = ck.problems.garnet(states=2_000, actions=4, gamma=0.9, seed=3)
    uniform = ck.TabularPolicy.uniform(cmdp.states, cmdp.actions)
    policies = []
    for accuracy in (0.0, 1e-3):
        learner = ExactLearner(cmdp, uniform)
        learner.improve(Weights(1.0, np.zeros(cmdp.num_constraints), step=1.0, accuracy=accuracy))
        policies.append(learner.policy.log_probabilities)
    difference = np.abs(policies[0] - policies[1]).max()
    assert 0.0 < difference <= 2e-3 * cmdp.cost_sizes[0] / (1.0 - cmdp.gamma)


def after(make, *steps):
    """The learner's parameters after its start and after each of these steps, with the same mix of costs."""
    learner = make()
    m = learner.look().values.size
    mix = (0.0, np.eye(m)[0]) if isinstance(learner, NeuralLearner) else (1.0, np.zeros(m))
    found = [parameters(learner).copy()]
    for fields in steps:
        learner.improve(Weights(*mix, **{"inner_steps": 1, **fields}))
        found.append(parameters(learner).copy())
    return found


@pytest.mark.parametrize("name", LEARNERS)
def test_an_anchor_can_be_returned_to(name):
    start, moved_away, back = after(LEARNERS[name], {}, {"inner_steps": 0, "anchor": "return"})
    assert np.abs(moved_away - start).max() > 0.0
    np.testing.assert_allclose(back, start, atol=1e-12)


@pytest.mark.parametrize("name", TABULAR)
def test_an_anchor_is_kept_or_left(name):
    """With step · α = 1 a step from a kept anchor forgets how far the policy has come; one from a new anchor adds."""
    start, first, kept = after(LEARNERS[name], {"step": 0.3}, {"step": 0.3, "anchor": "keep"})
    new = after(LEARNERS[name], {"step": 0.3}, {"step": 0.3})[-1]
    once, twice = np.abs(first - start).max(), np.abs(new - start).max()
    assert np.abs(kept - start).max() <= 1.4 * once < 1.6 * once <= twice


@pytest.mark.parametrize("name", ["exact", "neural"])
def test_a_kept_anchor_is_the_inner_loop(name):
    """Two macro steps with the same weights and a kept anchor are two inner steps (eq. npg-entropy)."""
    learner, other, fresh = (LEARNERS[name]() for _ in range(3))
    m = learner.look().values.size
    weights = Weights(1.0, np.full(m, 0.4), inner_steps=1, step=2.0 if name == "exact" else None)
    for one, anchor in ((learner, "keep"), (fresh, None)):
        one.improve(weights)
        one.improve(weights._replace(anchor=anchor))
    other.improve(weights._replace(inner_steps=2))
    np.testing.assert_allclose(parameters(learner), parameters(other), atol=1e-12)
    assert not np.allclose(parameters(fresh), parameters(other), atol=1e-6)


@pytest.mark.parametrize("name", LEARNERS)
def test_what_a_learner_cannot_honour_is_refused(name):
    learner = LEARNERS[name]()
    before, none = parameters(learner).copy(), np.zeros(learner.look().values.size)
    fields: list[dict[str, Any]] = [{"entropy": 0.1}, {"optimistic": True}]
    for field in fields if name == "neural" else [{"allowed_growth": none}]:
        with pytest.raises(NotImplementedError, match=f"{type(learner).__name__} cannot take steps with weights"):
            learner.improve(Weights(1.0, none, **field))
    with pytest.raises(ValueError, match="'keep' or 'return', not 'last'"):
        learner.improve(Weights(1.0, none, anchor="last"))
    np.testing.assert_array_equal(parameters(learner), before)


@pytest.mark.parametrize("name", TABULAR)
@pytest.mark.parametrize("fields", [{"radius": 0.1}, {"anchor": "keep"}, {"visit_error": 1.0}, {"entropy": 0.1}])
def test_an_optimistic_step_is_nothing_else(name, fields):
    with pytest.raises(NotImplementedError, match="optimistic step cannot be combined"):
        LEARNERS[name]().improve(Weights(1.0, np.zeros(1), optimistic=True, **fields))


def test_the_response_to_a_step_from_a_kept_anchor():
    """What the view predicts is what the step then does: the same policy, and its values to first order."""
    learner, price, step = exact(), np.array([0.7]), 3.0
    learner.improve(Weights(1.0, np.array([0.1]), step=step))
    view = learner.look()
    predicted = view.response(price, step, keep_anchor=True)
    other = view.response(price, step)
    learner.improve(Weights(1.0, price * view.units, step=step, anchor="keep"))
    np.testing.assert_allclose(predicted.policy, learner.policy.probabilities, atol=1e-12)
    assert np.abs(other.policy - learner.policy.probabilities).max() > 0.01


def test_the_error_of_held_visits_is_told_of_plain_mirror_steps_only():
    learner = exact()
    with pytest.raises(NotImplementedError):
        learner.look().visit_error  # noqa: B018
    learner.improve(Weights(1.0, np.zeros(1), step=1.0))
    assert learner.look().visit_error > 0.0
    learner.improve(Weights(1.0, np.zeros(1), step=1.0, radius=1e-3))
    with pytest.raises(NotImplementedError):
        learner.look().visit_error  # noqa: B018


def test_backups_lower_the_error_of_held_visits_to_what_is_asked():
    """Any number of backups is a mirror step from the anchor; at the end of them stands the proximal step."""
    found = []
    for allowed in (None, 1e-6, 1e-12):
        learner, weights = exact(), Weights(1.0, np.array([0.4]), step=3.0)
        learner.improve(weights)
        learner.improve(weights._replace(anchor="keep", visit_error=allowed))
        found.append((learner.look().visit_error, learner.policy.probabilities))
    assert found[0][0] > 1e-4
    assert found[1][0] < 1e-5
    assert found[2][0] < 1e-10
    learner.improve(weights._replace(anchor="keep", inner_steps=200))  # the inner loop of Algorithm 1 ends there too
    np.testing.assert_allclose(found[2][1], learner.policy.probabilities, atol=1e-9)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_restored_learner_goes_on_bit_for_bit(name):
    m = 2 if name == "neural" else 1
    weights = Weights(1.0, np.full(m, 0.3), inner_steps=2, radius=1e-2, anchor="keep")
    straight = LEARNERS[name]()
    straight.look()
    straight.improve(weights)
    straight.look()
    state = {key: np.copy(value) if isinstance(value, np.ndarray) else value for key, value in straight.state().items()}
    straight.improve(weights)
    again = LEARNERS[name]()
    again.restore(state)
    again.look()
    again.improve(weights)
    np.testing.assert_array_equal(parameters(again), parameters(straight))
    np.testing.assert_array_equal(again.look().values, straight.look().values)


def test_within_radius_by_hand():
    """One state, log-odds 0 → x: KL(½ ‖ σ(x)) = log cosh(x/2), so that the radius log cosh(0.5) stops at x = 1."""
    old, new = ck.TabularPolicy([[0.5, 0.5]]), ck.TabularPolicy.from_log([[0.0, 8.0]])
    found = within_radius(old, new, float(np.log(np.cosh(0.5))), np.ones(1)).log_probabilities
    assert found[0, 1] - found[0, 0] == pytest.approx(1.0, abs=1e-9)
    assert within_radius(old, new, 1e3) is new


def test_a_stale_view_is_refused():
    learner = exact()
    view = learner.look()
    learner.improve(Weights(1.0, np.zeros(1)))
    with pytest.raises(RuntimeError, match="of an earlier policy"):
        view.response(np.zeros(1), 1.0)


def test_no_probability_falls_below_the_floor():
    """What is above it stays, bit for bit; what is below is raised to it."""
    inside = ck.TabularPolicy.from_log([[0.0, -699.0]])
    assert above_floor(inside, -700.0) is inside
    raised = above_floor(ck.TabularPolicy.from_log([[0.0, -5000.0], [0.0, 0.0]]), -700.0).log_probabilities
    np.testing.assert_allclose(raised, [[0.0, -700.0], np.log([0.5, 0.5])], rtol=1e-15)
