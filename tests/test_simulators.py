"""Simulators and statistical certificates: exact values, coverage, and clear blame for bad simulators."""

import re
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.certificates.rollouts import half_width, judging_horizon
from cmdpkit.simulators import ModelSimulator, stream
from cmdpkit.simulators import compiled as kernels
from models import random_model


def uniform_policy(model):
    return np.full((model.states, model.actions), 1.0 / model.actions)


def exact_returns(cmdp, policy):
    """Discounted sums of the m + 1 quantities in the user's sense, without the factor of a limit per step."""
    values = ck.evaluate(cmdp, policy)
    units = [1.0 / (1.0 - cmdp.gamma) if c.per_step else 1.0 for c in cmdp.constraints]
    return np.append(values.objective, values.constraint_values * units)


def dense(cmdp):
    return cmdp.transitions.toarray() if hasattr(cmdp.transitions, "toarray") else np.asarray(cmdp.transitions)


def twin(cmdp):
    """The same model as a user's simulator: next states drawn row by row with NumPy."""
    P = dense(cmdp)
    tables = np.stack([cmdp.objective, *(np.asarray(c.values) for c in cmdp.constraints)])
    bounds = [(table.min(), table.max()) for table in tables]

    def step(states, actions, rng):
        rows = np.cumsum(P[states * cmdp.actions + actions], axis=1)
        following = (rows < rng.random(states.size)[:, None]).sum(axis=1)
        return np.minimum(following, cmdp.states - 1), tables[:, states, actions]

    return ck.Simulator(
        step,
        lambda n, rng: rng.choice(cmdp.states, size=n, p=cmdp.initial),
        states=cmdp.states,
        actions=cmdp.actions,
        gamma=cmdp.gamma,
        constraints=[replace(c, values=None) for c in cmdp.constraints],
        maximise=cmdp.maximise,
        bounds=bounds,
    )


@pytest.mark.parametrize("kind", ["compiled", "user's own"])
@pytest.mark.parametrize("seed", range(6))
def test_rollouts_have_the_exact_mean_and_variance(seed, kind):
    cmdp = random_model(seed, constraints=2, gamma=0.8)
    rng = np.random.default_rng(seed)
    policy = rng.dirichlet(np.full(cmdp.actions, 0.5), size=cmdp.states)
    simulator = ModelSimulator(cmdp) if kind == "compiled" else twin(cmdp)
    n, horizon = (200_000, 80) if kind == "compiled" else (20_000, 80)
    returns = simulator.returns(policy, horizon, n, (seed,))
    mean = returns.means[0]
    deviation = np.sqrt(np.maximum(returns.squares[0] / n - mean**2, 0.0) / n)
    truth = exact_returns(cmdp, policy)
    assert returns.transitions == n * horizon
    assert (np.abs(mean - truth) <= 4.5 * deviation + 1e-6 * np.maximum(1.0, np.abs(truth))).all()


def test_one_step_frequencies_are_those_of_the_model():
    """Horizon 1 under a deterministic policy: returns are known exactly, whatever the random numbers."""
    cmdp = random_model(11, constraints=1, gamma=0.9, states=6)
    policy = np.eye(cmdp.actions)[np.zeros(cmdp.states, dtype=int)]
    returns = ModelSimulator(cmdp).returns(policy, 1, 400_000, (5,))
    expected = cmdp.initial @ cmdp.objective[:, 0]
    spread = np.sqrt(cmdp.initial @ cmdp.objective[:, 0] ** 2 - expected**2)
    assert returns.means[0, 0] == pytest.approx(expected, abs=5 * spread / np.sqrt(400_000) + 1e-12)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("horizon", [40, None])
def test_numbers_do_not_depend_on_the_threads(pairs, horizon, monkeypatch):
    simulator = ModelSimulator(ck.problems.paper())
    policy, runs = uniform_policy(simulator), []
    for threshold in (0, 10**12):  # every run parallel, no run parallel
        monkeypatch.setattr("cmdpkit.simulators.known_model.PARALLEL_STEPS", threshold)
        runs.append(simulator.returns(policy, horizon, 3_000, (1, 2), pairs=pairs))
    np.testing.assert_array_equal(runs[0].sums, runs[1].sums)
    np.testing.assert_array_equal(runs[0].squares, runs[1].squares)
    assert runs[0].transitions == runs[1].transitions
    other = simulator.returns(policy, horizon, 3_000, (1, 3), pairs=pairs)
    assert (runs[0].sums != other.sums).all()


@pytest.mark.parametrize("horizon", [90, None])
@pytest.mark.parametrize("kind", ["compiled", "user's own"])
def test_returns_from_every_pair_have_the_exact_mean(kind, horizon):
    """Q_i of every pair, a mix of them, and a cost of states that the first step does not pay."""
    cmdp = random_model(4, constraints=2, gamma=0.8, states=5)
    rng = np.random.default_rng(1)
    policy = rng.dirichlet(np.full(cmdp.actions, 0.5), size=cmdp.states)
    simulator = ModelSimulator(cmdp) if kind == "compiled" else twin(cmdp)
    n = 60_000 if kind == "compiled" else 6_000
    mix, extra = np.array([[1.0, 0.0, 0.0], [0.5, -2.0, 1.0]]), rng.uniform(size=cmdp.states)
    answer = simulator.returns(policy, horizon, n, (3,), pairs=True, weights=mix, state_cost=extra)
    units = np.array([1.0] + [1.0 / (1.0 - cmdp.gamma) if c.per_step else 1.0 for c in cmdp.constraints])
    q = (ck.evaluate(cmdp, policy).action_values * units[:, None, None]).reshape(3, -1)
    states_only = ck.CMDP(
        dense(cmdp).reshape(cmdp.states, cmdp.actions, cmdp.states),
        cost=np.repeat(extra[:, None], cmdp.actions, axis=1),
        gamma=cmdp.gamma,
    )
    later = ck.evaluate(states_only, policy).action_values[0] - extra[:, None]
    truth = (mix @ q).T + later.reshape(-1, 1)
    deviation = np.sqrt(np.maximum(answer.squares / n - answer.means**2, 0.0) / n)
    assert answer.sums.shape == (cmdp.states * cmdp.actions, 2)
    assert (np.abs(answer.means - truth) <= 5.0 * deviation + 1e-6).all()
    mean_length = answer.transitions / (n * truth.shape[0])
    assert mean_length == (90 if horizon else pytest.approx(5.0, rel=0.02))


@pytest.mark.parametrize("kind", ["compiled", "user's own"])
def test_geometric_returns_from_the_start_are_unbiased(kind):
    cmdp = random_model(8, constraints=1, gamma=0.7)
    simulator = ModelSimulator(cmdp) if kind == "compiled" else twin(cmdp)
    n = 200_000 if kind == "compiled" else 40_000
    answer = simulator.returns(uniform_policy(cmdp), None, n, (9,))
    deviation = np.sqrt((answer.squares[0] / n - answer.means[0] ** 2) / n)
    assert (np.abs(answer.means[0] - exact_returns(cmdp, uniform_policy(cmdp))) <= 4.5 * deviation).all()


def test_a_model_steps_like_its_table():
    cmdp = random_model(2, constraints=1, gamma=0.7, states=4)
    states, actions = np.full(100_000, 2), np.full(100_000, 1)
    following, quantities = ModelSimulator(cmdp).step(states, actions, np.random.default_rng(0))
    row = dense(cmdp)[2 * cmdp.actions + 1]
    np.testing.assert_allclose(np.bincount(following, minlength=4) / 1e5, row, atol=0.008)
    assert (quantities[0] == cmdp.objective[2, 1]).all()


def test_alias_tables_hold_the_distribution():
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 100):
        weights = rng.dirichlet(np.full(size, 0.2))
        threshold, alias = np.empty(size), np.empty(size, dtype=np.int64)
        kernels.build_alias(weights.copy(), threshold, alias)
        mass = threshold / size
        np.add.at(mass, alias, (1.0 - threshold) / size)
        np.testing.assert_allclose(mass, weights, atol=1e-12)


# -- certificates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rollouts", [50, 400])
def test_intervals_cover_at_least_as_often_as_they_promise(rollouts):
    """1,000 repetitions on models with known values, all m + 1 intervals at once."""
    models = [random_model(seed, constraints=2, gamma=0.8) for seed in range(4)]
    covered = 0
    for repetition in range(1_000):
        cmdp = models[repetition % 4]
        policy = uniform_policy(cmdp)
        truth = ck.evaluate(cmdp, policy)
        found = ck.certify_by_simulation(cmdp, policy, confidence=0.9, rollouts=rollouts, seed=repetition)
        low, high = found.objective_interval
        inside = (found.intervals[:, 0] <= truth.constraint_values) & (truth.constraint_values <= found.intervals[:, 1])
        covered += low <= truth.objective <= high and bool(inside.all())
    assert covered >= 900


def test_truncation_is_part_of_the_interval():
    """One step of a hundred: without the rest of the sum the interval would miss the truth by far."""
    cmdp = random_model(2, constraints=1, gamma=0.99)
    truth = ck.evaluate(cmdp, uniform_policy(cmdp))
    found = ck.certify_by_simulation(cmdp, uniform_policy(cmdp), rollouts=1_000, horizon=1)
    low, high = found.objective_interval
    assert low <= truth.objective <= high
    assert high - low > 0.9 * np.ptp(cmdp.objective) / (1.0 - 0.99)


@pytest.mark.parametrize("at_least", [False, True])
@pytest.mark.parametrize("per_step", [False, True])
def test_verdicts(at_least, per_step):
    paper = ck.problems.paper()
    utility = np.asarray(paper.constraints[0].values)
    value = ck.evaluate(paper, uniform_policy(paper)).constraint_values[0] * (0.2 if per_step else 1.0)
    P = np.asarray(paper.transitions).reshape(20, 10, 20)
    kind = ck.AtLeast if at_least else ck.AtMost
    for offset, expected in ((0.3, "satisfied"), (-0.3, "violated"), (1e-5, "undecided")):
        limit = value * (1.0 - offset if at_least else 1.0 + offset)
        cmdp = ck.CMDP(P, reward=paper.objective, constraints=[kind(utility, limit, per_step=per_step)], gamma=0.8)
        found = ck.certify_by_simulation(cmdp, uniform_policy(cmdp), rollouts=5_000)
        assert found.verdicts == [expected]
        assert found.satisfied == (expected == "satisfied")
        assert (found.more_rollouts != [0]) == (expected == "undecided")


def test_more_rollouts_would_have_decided():
    cmdp = ck.problems.paper().tightened(-0.51)  # limit 2.49, the uniform policy has 2.478
    first = ck.certify_by_simulation(cmdp, uniform_policy(cmdp), rollouts=2_000)
    assert first.verdicts == ["undecided"]
    again = ck.certify_by_simulation(cmdp, uniform_policy(cmdp), rollouts=4 * (2_000 + first.more_rollouts[0]))
    assert again.verdicts == ["violated"]


def test_a_limit_at_the_value_itself_is_out_of_reach():
    cmdp = ck.CMDP([[[1.0], [1.0]]], reward=[[0.0, 1.0]], constraints=[ck.AtMost([[0.0, 1.0]], 5.0)], gamma=0.9)
    found = ck.certify_by_simulation(cmdp, [[0.5, 0.5]], rollouts=1_000, horizon=1)  # what is cut off hides the limit
    assert found.verdicts == ["undecided"]
    assert found.more_rollouts == [None]
    assert "undecided (a decision is out of reach)" in repr(found)
    close = ck.certify_by_simulation(cmdp.with_limits({"constraint 1": 5.5}), [[0.5, 0.5]], rollouts=100)
    assert re.search(r"undecided \(about [\d,]+ more rollouts decide\)", repr(close))


def test_intervals_stay_within_the_bounds():
    """Three rollouts prove nothing beyond what the bounds of one step say: sums from 0 to 10, averages from 0 to 1."""
    per_step = ck.AtMost([[0.0, 1.0]], 0.5, per_step=True)
    cmdp = ck.CMDP([[[1.0], [1.0]]], reward=[[0.0, 1.0]], constraints=[per_step], gamma=0.9)
    found = ck.certify_by_simulation(cmdp, [[0.5, 0.5]], rollouts=3)
    assert found.objective_interval == pytest.approx((0.0, 10.0), abs=1e-12)
    assert found.intervals[0] == pytest.approx((0.0, 1.0), abs=1e-12)


def test_looking_until_decided():
    cmdp = ck.problems.paper().tightened(-0.51)
    found = ck.certify_by_simulation(cmdp, uniform_policy(cmdp), rollouts=1_000, until_decided=True)
    assert found.verdicts == ["violated"]
    assert 1_000 < found.rollouts < 2_000_000
    limited = ck.certify_by_simulation(
        cmdp.tightened(-0.012), uniform_policy(cmdp), rollouts=1_000, until_decided=True, max_rollouts=3_000
    )
    assert limited.rollouts == 3_000
    assert limited.samples == 3_000 * limited.horizon


def test_many_looks_cover_together():
    """Anytime-valid: over 200 runs that look until decided, hardly any decides wrongly."""
    cmdp = ck.problems.paper().tightened(-0.45)  # limit 2.55, the uniform policy has 2.478
    verdicts = [
        ck.certify_by_simulation(
            cmdp, uniform_policy(cmdp), confidence=0.9, rollouts=200, until_decided=True, seed=seed
        )
        for seed in range(200)
    ]
    assert sum(v.verdicts == ["satisfied"] for v in verdicts) <= 20
    assert sum(v.verdicts == ["violated"] for v in verdicts) >= 180


def test_horizon_and_width_by_hand():
    assert judging_horizon(0.0, 100) == 1
    assert 0.5 ** judging_horizon(0.5, 100) <= 0.01 < 0.5 ** (judging_horizon(0.5, 100) - 1)
    log = np.log(4.0 / 0.1)
    assert half_width(np.array(4.0), np.array(10.0), 100, 0.1) == pytest.approx(
        np.sqrt(8.0 * log / 100.0) + 70.0 * log / 297.0
    )


# -- users' simulators -------------------------------------------------------------------------------------------------


def simple(step, **changes):
    settings = {"states": 3, "actions": 2, "gamma": 0.5, "bounds": [(0.0, 1.0)]} | changes
    return ck.Simulator(step, lambda n, rng: np.zeros(n, dtype=int), **settings)


def stay(states, actions, rng):
    return states, np.ones((1, states.size))


def spoiled(states, actions, rng, what):
    following, values = states.copy(), np.ones((1, states.size))
    bad = actions == 1
    if what == "raise" and bad.any():
        raise RuntimeError("out of stock")
    if what == "nan":
        values[0, bad] = np.nan
    if what == "range":
        following[bad] = 7
    if what == "bounds":
        values[0, bad] = 1.5
    return following, values


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("raise", r"failed in state 0 with action 1: RuntimeError: out of stock"),
        ("nan", r"in state 0 with action 1 the simulator gave the quantities \[nan\]"),
        ("range", r"in state 0 with action 1 the simulator moved to state 7"),
        ("bounds", r"in state 0 with action 1 the simulator left its bounds"),
    ],
)
def test_a_bad_simulator_is_blamed_with_state_and_action(what, message):
    simulator = simple(lambda s, a, rng: spoiled(s, a, rng, what))
    with pytest.raises(ValueError, match=message):
        ck.certify_by_simulation(simulator, np.full((3, 2), 0.5), rollouts=50)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda s, a, rng: (s[:-1], np.ones((1, s.size))), "next states"),
        (lambda s, a, rng: (s.astype(float), np.ones((1, s.size))), "next states"),
        (lambda s, a, rng: (s, np.ones((2, s.size))), r"shape \(1, 50\) is needed"),
        (lambda s, a, rng: s, "a pair, next states and quantities"),
    ],
)
def test_wrong_shapes_are_refused(step, message):
    with pytest.raises(ValueError, match=message):
        ck.certify_by_simulation(simple(step), np.full((3, 2), 0.5), rollouts=50)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"states": 0}, "states must be"),
        ({"actions": 2.5}, "actions must be"),
        ({"gamma": 1.0}, "gamma"),
        ({"bounds": [(0, 1), (0, 1)]}, "bounds must be 1 pairs"),
        ({"bounds": [(1, 0)]}, "bounds must be"),
        ({"constraints": [ck.AtMost(None, float("nan"))]}, "limit of constraint"),
        ({"constraints": [ck.AtMost(np.ones((3, 2)), 1.0)]}, "its values come from step: use None"),
        ({"constraints": [ck.AtMost("wear", 1.0)]}, "its values come from step: use None"),
        ({"maximise": "no"}, "maximise must be True or False"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        simple(stay, **changes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"confidence": 1.0}, "confidence"),
        ({"rollouts": 1}, "rollouts"),
        ({"horizon": 0}, "horizon"),
        ({"seed": -1}, "seed"),
        ({"max_rollouts": 2.5}, "max_rollouts"),
    ],
)
def test_bad_calls_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ck.certify_by_simulation(simple(stay), np.full((3, 2), 0.5), **options)
    with pytest.raises(ValueError, match="bounds="):
        ck.certify_by_simulation(simple(stay, bounds=None), np.full((3, 2), 0.5))
    with pytest.raises(TypeError, match="Simulator"):
        ck.certify_by_simulation(42, np.full((3, 2), 0.5))


def test_start_is_checked():
    bad = ck.Simulator(stay, lambda n, rng: np.full(n, 3), states=3, actions=2, gamma=0.5, bounds=[(0, 1)])
    with pytest.raises(ValueError, match="start returned the state 3"):
        ck.certify_by_simulation(bad, np.full((3, 2), 0.5))


def test_frozen_lake_against_its_own_table():
    """The environment as a simulator, and the model made of the probabilities that it publishes."""
    env = gymnasium.make("FrozenLake-v1", is_slippery=True)
    holes, ends = (5, 7, 11, 12), (5, 7, 11, 12, 15)
    simulator = ck.from_gymnasium(
        env,
        gamma=0.9,
        quantities=lambda s, a, following, reward: [float(following in holes)],
        constraints=[ck.AtMost(None, 0.3, name="falls")],
        bounds=[(0.0, 1.0), (0.0, 1.0)],
    )
    P, reward, falls = np.zeros((16, 4, 16)), np.zeros((16, 4)), np.zeros((16, 4))
    for s, a in np.ndindex(16, 4):
        if s in ends:
            P[s, a, s] = 1.0
            continue
        for probability, following, r, _ in env.get_wrapper_attr("P")[s][a]:
            P[s, a, following] += probability
            reward[s, a] += probability * r
            falls[s, a] += probability * (following in holes)
    model = ck.CMDP(P, reward=reward, constraints=[ck.AtMost(falls, 0.3)], gamma=0.9, initial=0)
    policy = np.full((16, 4), 0.25)
    truth = ck.evaluate(model, policy)
    found = ck.certify_by_simulation(simulator, policy, rollouts=3_000, confidence=0.99)
    assert found.verdicts == ["violated"]
    assert found.intervals[0, 0] <= truth.constraint_values[0] <= found.intervals[0, 1]
    assert found.constraint_values[0] == pytest.approx(truth.constraint_values[0], abs=0.03)
    again = ck.certify_by_simulation(simulator, policy, rollouts=3_000, confidence=0.99)
    assert again.objective == found.objective


@pytest.mark.parametrize("name", ["CliffWalking-v1", "Taxi-v4"])
def test_other_toy_environments(name):
    simulator = ck.from_gymnasium(gymnasium.make(name), gamma=0.9, bounds=[(-100.0, 20.0)])
    found = ck.certify_by_simulation(simulator, uniform_policy(simulator), rollouts=20)
    assert found.objective < 0.0


def test_environments_without_discrete_states_are_refused():
    with pytest.raises(ValueError, match="no discrete states"):
        ck.from_gymnasium(gymnasium.make("CartPole-v1"), gamma=0.9)
    with pytest.raises(ValueError, match="quantities is needed"):
        ck.from_gymnasium(gymnasium.make("FrozenLake-v1"), gamma=0.9, constraints=[ck.AtMost(None, 1.0)])


# -- what a review found ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["compiled", "user's own"])
@pytest.mark.parametrize("far", [0.0, 1e6, 1e8])
def test_intervals_of_large_numbers_keep_their_width(kind, far):
    """Squares of returns near 1e8 have no digits left for a variance of 1/4; the intervals must not collapse."""
    reward = far + np.array([[0.0], [1.0]])
    cmdp = ck.CMDP(np.full((2, 1, 2), 0.5), reward=reward, gamma=0.0)
    simulator = cmdp if kind == "compiled" else twin(cmdp)
    for seed in range(20):
        proof = ck.certify_by_simulation(simulator, np.ones((2, 1)), rollouts=2_000, seed=seed)
        low, high = proof.objective_interval
        assert low <= far + 0.5 <= high
        assert 0.02 < high - low < 0.2


def test_certificates_use_random_numbers_of_their_own():
    """No stream of learning is a stream of judging, whatever the numbers in the tuples."""
    tuples = [(0, 1), (0, 1, 0), (0, 2, 1), (0, 1, 1, 0), (0, 1, 2), (2**32, 1), (1, 1), (0, 1, 0, 0)]
    states = {tuple(stream(seed).generate_state(4)) for seed in tuples}
    assert len(states) == len(tuples)


def test_a_step_that_writes_into_its_arguments_is_refused():
    def step(states, actions, rng):
        states += actions
        return states, np.ones((1, states.size))

    simulator = ck.Simulator(step, lambda n, rng: np.zeros(n, dtype=int), states=3, actions=2, gamma=0.5)
    with pytest.raises(ValueError, match="read-only"):
        simulator.returns(np.full((3, 2), 0.5), 5, 10, (0,))


def test_the_culprit_is_found_among_many():
    def step(states, actions, rng):
        if ((states == 17) & (actions == 3)).any():
            raise RuntimeError("boom")
        return states, np.ones((1, states.size))

    simulator = ck.Simulator(step, lambda n, rng: np.zeros(n, dtype=int), states=20, actions=5, gamma=0.5)
    with pytest.raises(ValueError, match="in state 17 with action 3: RuntimeError: boom"):
        simulator.returns(np.full((20, 5), 0.2), 2, 30, (0,), pairs=True)

    def batch_only(states, actions, rng):
        if states.size > 1:
            raise RuntimeError("too many")
        return states, np.ones((1, states.size))

    simulator = ck.Simulator(batch_only, lambda n, rng: np.zeros(n, dtype=int), states=20, actions=5, gamma=0.5)
    with pytest.raises(ValueError, match="batch of 10 states"):
        simulator.returns(np.full((20, 5), 0.2), 2, 10, (0,))


def test_taxi_does_not_remember():
    """What a state does must not depend on which episodes were seen to end before."""
    taxi = ck.from_gymnasium(gymnasium.make("Taxi-v4"), gamma=0.9)
    few = ck.Sampling(rollouts=1, value_rollouts=5, horizon=5, certificate_rollouts=2)
    runs = [ck.solve(taxi, sampling=few, max_iterations=2, step=0.5, seed=1, eta_dual=1.0) for _ in range(2)]
    np.testing.assert_array_equal(runs[0].policy.log_probabilities, runs[1].policy.log_probabilities)


def test_gamma_one_is_refused_with_advice():
    def stay(states, actions, rng):
        return states, np.zeros((1, states.size))

    with pytest.raises(ValueError, match="make the stage part of the state"):
        ck.Simulator(stay, lambda n, rng: np.zeros(n, dtype=int), states=2, actions=1, gamma=1)
