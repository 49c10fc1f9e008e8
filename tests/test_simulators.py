"""Simulators and statistical certificates: exact values, coverage, and clear blame for bad simulators."""

import gymnasium
import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit import kernels
from cmdpkit.simulation import default_horizon, half_width
from cmdpkit.simulators import ModelSimulator
from models import random_model


def uniform_policy(model):
    return np.full((model.states, model.actions), 1.0 / model.actions)


def exact_returns(cmdp, policy):
    """Discounted sums of the m + 1 quantities in the user's sense, without the factor of a limit per step."""
    values = ck.evaluate(cmdp, policy)
    units = [1.0 / (1.0 - cmdp.gamma) if c.per_step else 1.0 for c in cmdp.constraints]
    return np.append(values.objective, values.constraint_values * units)


def twin(cmdp):
    """The same model as a user's simulator: next states drawn row by row with NumPy."""
    P = cmdp.transitions.toarray() if hasattr(cmdp.transitions, "toarray") else np.asarray(cmdp.transitions)
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
        constraints=cmdp.constraints,
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
    mean = returns.sums / n
    deviation = np.sqrt(np.maximum(returns.squares / n - mean**2, 0.0) / n)
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
    assert returns.sums[0] / 400_000 == pytest.approx(expected, abs=5 * spread / np.sqrt(400_000) + 1e-12)


def test_numbers_do_not_depend_on_the_threads():
    simulator = ModelSimulator(ck.problems.paper())
    table, base = simulator._tables(uniform_policy(simulator))
    counts, keys = np.full(64, 500), np.arange(64, dtype=np.uint64) * np.uint64(977)
    results = []
    for run in (kernels.rollouts_serial, kernels.rollouts_parallel):
        sums, squares = np.zeros((2, 64, 2))
        quantities = np.ascontiguousarray(simulator._quantities.T)
        run(table, base, quantities, simulator._first_table(), 0.8, 40, counts, keys, sums, squares)
        results.append((sums, squares))
    np.testing.assert_array_equal(results[0], results[1])
    one, two = (simulator.returns(uniform_policy(simulator), 40, 100_000, (1, 2)) for _ in range(2))
    np.testing.assert_array_equal(one.sums, two.sums)
    other = simulator.returns(uniform_policy(simulator), 40, 100_000, (1, 3))
    assert (one.sums != other.sums).all()


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
        assert (found.more_rollouts[0] > 0) == (expected == "undecided")


def test_more_rollouts_would_have_decided():
    cmdp = ck.problems.paper().tightened(-0.51)  # limit 2.49, the uniform policy has 2.478
    first = ck.certify_by_simulation(cmdp, uniform_policy(cmdp), rollouts=2_000)
    assert first.verdicts == ["undecided"]
    again = ck.certify_by_simulation(cmdp, uniform_policy(cmdp), rollouts=4 * (2_000 + first.more_rollouts[0]))
    assert again.verdicts == ["violated"]


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
    assert default_horizon(0.0, 100) == 1
    assert 0.5 ** default_horizon(0.5, 100) <= 0.01 < 0.5 ** (default_horizon(0.5, 100) - 1)
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
        (lambda s, a, rng: s, "failed in state"),
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
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
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
    with pytest.raises(ValueError, match=message):
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
        for probability, following, r, _ in env.unwrapped.P[s][a]:
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
