"""Statistical certificates by hand: every number that was drawn is written down, and the intervals computed from it."""

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.certificates.rollouts import judging_horizon
from cmdpkit.simulators import ModelSimulator
from cmdpkit.simulators import simulator as simulators

GAMMA, HORIZON = 0.6, 4
LOW, HIGH = np.array([-1.0, 0.5, 0.0]), np.array([2.0, 3.0, 4.0])
LENGTH, REST = (1.0 - GAMMA**HORIZON) / (1.0 - GAMMA), GAMMA**HORIZON / (1.0 - GAMMA)
UNITS = np.array([1.0, 1.0, 1.0 - GAMMA])  # the second limit is per step
ONE = np.ones((1, 1))


class Dice:
    """One state whose three quantities are uniform within their bounds; remembers the discounted sum of each rollout.

    Rollouts are drawn in order and all take HORIZON steps, so that every HORIZON calls are one batch of them.
    """

    def __init__(self, most=1e9, least=-1e9):
        self.batches = []
        self.time = 0
        limits = [ck.AtMost(None, most, name="most"), ck.AtLeast(None, least, name="least", per_step=True)]
        self.simulator = ck.Simulator(
            self.step,
            lambda n, rng: np.zeros(n, dtype=int),
            states=1,
            actions=1,
            gamma=GAMMA,
            constraints=limits,
            bounds=list(zip(LOW, HIGH, strict=True)),
        )

    def step(self, states, actions, rng):
        quantities = rng.uniform(LOW, HIGH, size=(states.size, 3)).T
        if self.time % HORIZON == 0:
            self.batches.append(np.zeros((states.size, 3)))
        self.batches[-1] += GAMMA ** (self.time % HORIZON) * quantities.T
        self.time += 1
        return states, quantities

    def intervals(self, delta):
        """Empirical Bernstein for all three quantities at once, and what follows the last step."""
        sums = np.concatenate(self.batches)
        n, share = len(sums), delta / 3.0
        log = np.log(4.0 / share)
        width = np.sqrt(2.0 * sums.var(axis=0, ddof=1) * log / n) + 7.0 * (HIGH - LOW) * LENGTH * log / (3.0 * (n - 1))
        mean = sums.mean(axis=0)
        return UNITS * (mean - width + REST * LOW), UNITS * (mean + width + REST * HIGH), mean


def test_widths_by_hand():
    dice = Dice()
    proof = ck.certify_by_simulation(dice.simulator, ONE, confidence=0.9, rollouts=80, horizon=HORIZON, seed=3)
    lower, upper, mean = dice.intervals(delta=0.1)
    assert proof.rollouts == 80
    assert proof.samples == 80 * HORIZON
    np.testing.assert_allclose(proof.objective_interval, [lower[0], upper[0]], rtol=1e-12)
    np.testing.assert_allclose(proof.intervals, np.stack([lower, upper], axis=1)[1:], rtol=1e-12)
    # The estimate puts what is cut off in the middle of what it can be
    middle = UNITS * (mean + REST * 0.5 * (LOW + HIGH))
    assert proof.objective == pytest.approx(middle[0], rel=1e-12)
    np.testing.assert_allclose(proof.constraint_values, middle[1:], rtol=1e-12)


def test_verdicts_change_exactly_at_the_ends_of_the_intervals():
    dice = Dice()
    settings = {"confidence": 0.9, "rollouts": 80, "horizon": HORIZON, "seed": 3}
    ck.certify_by_simulation(dice.simulator, ONE, **settings)
    lower, upper, _ = dice.intervals(delta=0.1)

    def verdicts(most, least):
        return ck.certify_by_simulation(Dice(most, least).simulator, ONE, **settings).verdicts

    tiny = 1e-9
    assert verdicts(upper[1] + tiny, lower[2] - tiny) == ["satisfied", "satisfied"]
    assert verdicts(upper[1] - tiny, lower[2] + tiny) == ["undecided", "undecided"]
    assert verdicts(lower[1] + tiny, upper[2] - tiny) == ["undecided", "undecided"]
    assert verdicts(lower[1] - tiny, upper[2] + tiny) == ["violated", "violated"]


def test_every_look_spends_its_part_of_delta():
    """Look k may be wrong with probability δ/(k (k + 1)); these sum to δ. It counts all rollouts drawn so far."""
    truth = UNITS * 0.5 * (LOW + HIGH) / (1.0 - GAMMA)
    dice = Dice(most=truth[1], least=truth[2])  # can never be decided
    proof = ck.certify_by_simulation(
        dice.simulator, ONE, 0.9, rollouts=50, horizon=HORIZON, until_decided=True, max_rollouts=300, seed=5
    )
    assert [len(batch) for batch in dice.batches] == [50, 50, 100, 100]  # doubled each time, up to what is allowed
    lower, upper, _ = dice.intervals(delta=0.1 / (4 * 5))
    np.testing.assert_allclose(proof.intervals, np.stack([lower, upper], axis=1)[1:], rtol=1e-12)
    assert proof.verdicts == ["undecided", "undecided"]
    assert proof.rollouts == 300
    assert proof.confidence == 0.9
    # and every look draws new numbers
    firsts = {tuple(batch[0]) for batch in dice.batches}
    assert len(firsts) == 4


def test_the_first_look_spends_half_of_delta():
    dice = Dice(most=100.0, least=-100.0)  # decided at once
    proof = ck.certify_by_simulation(dice.simulator, ONE, 0.9, rollouts=50, horizon=HORIZON, until_decided=True)
    lower, upper, _ = dice.intervals(delta=0.1 / 2)
    assert proof.rollouts == 50
    np.testing.assert_allclose(proof.objective_interval, [lower[0], upper[0]], rtol=1e-12)


def test_the_horizon_suits_the_number_of_rollouts():
    # γ^N ≤ 0.1 / sqrt(n):  2⁻¹⁰ ≤ 0.001 < 2⁻⁹ and 2⁻⁷ ≤ 0.01 < 2⁻⁶
    assert judging_horizon(0.5, 10_000) == 10
    assert judging_horizon(0.5, 100) == 7


def test_a_mixture_is_judged_by_its_weights():
    """Of 4,000 rollouts 90 % follow the first policy, ± 4 deviations of 0.5 %."""
    chosen = []

    def step(states, actions, rng):
        chosen.append(actions.copy())
        return states, np.zeros((1, states.size))

    simulator = ck.Simulator(step, lambda n, rng: np.zeros(n, int), states=1, actions=2, gamma=0.0, bounds=[(0.0, 1.0)])
    policies = [ck.TabularPolicy([[1.0, 0.0]]), ck.TabularPolicy([[0.0, 1.0]])]
    proof = ck.certify_by_simulation(simulator, ck.MixturePolicy(policies, [0.9, 0.1]), rollouts=4_000, horizon=1)
    assert proof.rollouts == np.concatenate(chosen).size == 4_000
    assert np.concatenate(chosen).mean() == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("n", [8, 1_024])  # rollouts advanced together, and those that share a stream
def test_compiled_rollouts_do_not_repeat_each_other(n):
    simulator = ModelSimulator(ck.problems.paper())
    policy = np.full((20, 10), 0.1)
    once, twice = (simulator.returns(policy, 5, count, (0,)).sums for count in (n, 2 * n))
    assert (np.abs(twice - 2.0 * once) > 1e-9).all()


def test_blocks_of_a_users_rollouts_do_not_repeat_each_other(monkeypatch):
    monkeypatch.setattr(simulators, "TOGETHER", 10)
    once, twice = (Dice().simulator.returns(ONE, HORIZON, count, (0,)).sums for count in (10, 20))
    assert (np.abs(twice - 2.0 * once) > 1e-9).all()


@pytest.mark.parametrize(("value", "row"), [(-1.1, 0), (2.1, 0), (0.4, 1), (3.1, 1)])
def test_quantities_outside_their_bounds_are_refused(value, row):
    quantities = np.array([[0.0], [1.0]])
    quantities[row] = value
    simulator = ck.Simulator(
        lambda s, a, rng: (s, quantities),
        lambda n, rng: np.zeros(n, int),
        states=1,
        actions=1,
        gamma=0.5,
        constraints=[ck.AtMost(None, 1.0)],
        bounds=[(-1.0, 2.0), (0.5, 3.0)],
    )
    with pytest.raises(ValueError, match="left its bounds"):
        simulator.step(np.zeros(1, int), np.zeros(1, int), np.random.default_rng(0))


def test_a_models_identity_sees_every_number():
    """A checkpoint of the same model with another cost, start or limit must be told apart."""

    def identity(reward=0.0, initial=0, limit=1.0, move=0.5):
        P = np.array([[[1.0 - move, move]], [[0.5, 0.5]]])
        cmdp = ck.CMDP(
            P, reward=[[1.0], [reward]], constraints=[ck.AtMost([[0.0], [1.0]], limit)], gamma=0.5, initial=initial
        )
        return repr(ModelSimulator(cmdp).identity())

    changes = [{}, {"reward": 0.5}, {"initial": 1}, {"limit": 2.0}, {"move": 0.25}]
    assert len({identity(**change) for change in changes}) == len(changes)
    assert identity() == identity()
