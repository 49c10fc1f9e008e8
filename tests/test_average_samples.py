"""Long-run averages from samples: what rollouts prove, the bound on their bias, and learning from transitions."""

import numpy as np
import pytest
import scipy.sparse as sp

import cmdpkit as ck
from cmdpkit.evaluation.gain_bounds import bias_bound, return_time
from cmdpkit.learners.estimators import Meter, Pooled
from cmdpkit.policy import as_policy
from cmdpkit.simulators import as_simulator
from long_run import average_lp, communicating, multichain, unichain


def chain(P, cost, limit=None, initial=0):
    """A model without choices."""
    P, cost = np.asarray(P, dtype=float), np.asarray(cost, dtype=float)[:, None]
    limits = [] if limit is None else [ck.AtMost(cost, limit, name="cost")]
    return ck.CMDP(P[:, None, :], cost=cost, constraints=limits, average=True, initial=initial, action_axis=1)


def circle(n, limit=None):
    """Period n; the first state costs 1."""
    return chain(np.roll(np.eye(n), 1, axis=1), np.arange(n) == 0, limit)


def slow_start(leave, cost=(100.0, 0.0), initial=0):
    """State 0 is left with a small probability, and never entered again: its cost does not count in the long run."""
    return chain([[1.0 - leave, leave], [0.0, 1.0]], cost, initial=initial)


def two_ends(stay=0.9):
    """From state 0 one way or the other, by chance and for ever; each part has a state that is left slowly."""
    P = [
        [0, 0.5, 0, 0.5, 0],
        [0, stay, 1 - stay, 0, 0],
        [0, 0.5, 0.5, 0, 0],
        [0, 0, 0, stay, 1 - stay],
        [0, 0, 0, 1, 0],
    ]
    return chain(P, [0.0, 1.0, 0.0, -1.0, 0.0])


def flow(stay=0.5):
    """Two states that alternate slowly."""
    return chain([[stay, 1.0 - stay], [1.0 - stay, stay]], [0.0, 10.0], limit=6.0)


def ones(cmdp):
    return np.ones((cmdp.states, 1))


def twin(cmdp, **settings):
    """The same process, as a user's simulator."""
    inner = as_simulator(cmdp, others=True)
    limits = [type(c)(None, c.limit, name=c.name) for c in cmdp.constraints]
    settings = {"bounds": inner.bounds, "average": True, "maximise": cmdp.maximise} | settings
    return ck.Simulator(
        inner.step, inner.start, states=cmdp.states, actions=cmdp.actions, constraints=limits, **settings
    )


# -- how far the mean of T steps is from the average ------------------------------------------------------------------


def random_policy(cmdp, seed):
    table = np.random.default_rng(seed).dirichlet(np.full(cmdp.actions, 0.3), size=cmdp.states)
    if cmdp.pairs.is_full:
        return table
    table *= cmdp.pairs.mask
    table += 1e-3 * cmdp.pairs.mask
    return table / table.sum(axis=1, keepdims=True)


def matrix_of(cmdp, policy):
    """P_π, put together pair by pair."""
    P = cmdp.transitions.toarray() if sp.issparse(cmdp.transitions) else np.asarray(cmdp.transitions)
    chain = np.zeros((cmdp.states, cmdp.states))
    for row, s, a in zip(P, cmdp.pairs.state, cmdp.pairs.action, strict=True):
        chain[s] += policy[s, a] * row
    return chain


def worst_bias(cmdp, policy, tables):
    """The largest |expected sum of T costs − T · average| of tables (S, A, n), T < 200, by powers of the chain."""
    policy = np.asarray(policy)
    costs = (policy[:, :, None] * tables).sum(axis=1)
    P, now, sums, worst = matrix_of(cmdp, policy), np.array(cmdp.initial), np.zeros(costs.shape[1]), 0.0
    averages = ck.evaluate(cmdp, policy).occupancy.sum(axis=1) @ costs
    for steps in range(1, 200):
        sums, now = sums + now @ costs, now @ P
        worst = np.maximum(worst, np.abs(sums - steps * averages))
    return worst


@pytest.mark.parametrize("make", [unichain, communicating, multichain])
def test_sums_stay_within_the_bound_of_their_bias(make):
    """Costs of 0 and 1 at random, and those of the model."""
    rng, close, closer = np.random.default_rng(7), [], []
    for seed in range(40):
        cmdp = make(seed)
        policy = random_policy(cmdp, seed)
        pi = as_policy(policy, cmdp.pairs).pi
        any_costs, own = return_time(cmdp, pi), bias_bound(cmdp, pi)
        random = worst_bias(cmdp, policy, rng.integers(2, size=(cmdp.states, 1, 30)) + np.zeros((1, cmdp.actions, 1)))
        assert random.max() <= any_costs + 1e-9, (make.__name__, seed)
        tables = np.stack([cmdp.pairs.table(cmdp.pairs.like(c), 0.0) for c in cmdp.costs], axis=2)
        found = worst_bias(cmdp, policy, tables)
        assert (found <= own * cmdp.spans * (1.0 + 1e-9) + 1e-9).all(), (make.__name__, seed)
        close.append(random.max() / any_costs if any_costs else 1.0)
        closer.append((found / np.maximum(cmdp.spans, 1e-12)).max() / own if own else 1.0)
    assert min(np.median(close), np.median(closer)) > 0.05  # no bound is off by orders of magnitude


@pytest.mark.parametrize("bound", [bias_bound, return_time])
@pytest.mark.parametrize("leave", [0.5, 0.01, 1e-5])
def test_the_bound_is_nearly_attained(leave, bound):
    """All of the time before state 0 is left costs 1 in place of 0, and 1/leave steps are expected."""
    assert 1.0 / leave <= bound(slow_start(leave), np.ones((2, 1))) <= 1.12 / leave


def test_the_bound_of_chains_by_hand():
    assert return_time(slow_start(0.1, initial=1), np.ones((2, 1))) == 0.0  # what cannot be visited does not count
    assert bias_bound(slow_start(0.1, initial=1), np.ones((2, 1))) < 1e-5
    assert return_time(chain(np.eye(2), [0.0, 1.0]), np.ones((2, 1))) == 0.0  # a class neither
    assert 4.0 <= return_time(circle(5), np.ones((5, 1))) <= 4.5  # from the next state on, around to the first
    assert 0.8 <= bias_bound(circle(5), np.ones((5, 1))) <= 0.81  # one step costs 1 - 1/5 more than the average
    # States 1 and 3 mark their classes: one step away from the start, and two from state 2
    assert 3.0 <= bias_bound(two_ends(), np.ones((5, 1))) <= 3.4
    constant = chain(np.roll(np.eye(3), 1, axis=1), [2.0, 2.0, 2.0])
    assert bias_bound(constant, np.ones((3, 1))) == 0.0


def test_many_states_that_mix_fast():
    """Each of 500 states is seldom visited, but where a process starts is soon forgotten."""
    rng = np.random.default_rng(0)
    cmdp = chain(rng.dirichlet(np.ones(500), size=500), rng.integers(2, size=500))
    assert bias_bound(cmdp, ones(cmdp)) < 2.0
    assert return_time(cmdp, ones(cmdp)) > 100.0


def test_moves_that_rounding_hides_are_not_proved():
    cmdp = chain([[1.0, 1e-17], [1e-17, 1.0]], [0.0, 1.0])
    assert return_time(cmdp, np.ones((2, 1))) == np.inf
    assert bias_bound(cmdp, np.ones((2, 1))) == np.inf
    with pytest.raises(ValueError, match=r"left too seldom.*certify\(\) of it are exact"):
        ck.certify_by_simulation(cmdp, ones(cmdp), rollouts=100)


# -- certificates -----------------------------------------------------------------------------------------------------


def there_and_back():
    """Period 2: from either half at random into the other, of which some states stay for long."""
    P = [[0, 0, 0.9, 0.1], [0, 0, 0.3, 0.7], [0.8, 0.2, 0, 0], [0.1, 0.9, 0, 0]]
    return chain(P, [0.0, 1.0, 1.0, 4.0], initial=3)


@pytest.mark.parametrize(
    ("cmdp", "horizon", "repetitions"),
    [
        (circle(2), 3, 2),  # the mean of three steps is 2/3, whatever the seed
        (circle(5), 11, 2),
        (slow_start(0.2), 20, 40),
        (two_ends(), 30, 40),
        (flow(0.9), 30, 40),
        (there_and_back(), 20, 300),
        (there_and_back(), None, 40),
    ],
    ids=["period 2", "period 5", "transient", "two classes", "slow", "random of period 2", "of its own length"],
)
def test_intervals_cover_the_average(cmdp, horizon, repetitions):
    """Also where rollouts are so short that most of the interval is what they miss."""
    truth, missed, width = ck.long_run_averages(cmdp, ones(cmdp))[0], 0, 0.0
    for seed in range(repetitions):
        found = ck.certify_by_simulation(cmdp, ones(cmdp), confidence=0.8, rollouts=150, horizon=horizon, seed=seed)
        low, high = found.objective_interval
        missed += not low <= truth <= high
        width = max(width, high - low)
    assert missed <= 0.2 * repetitions
    assert width < np.ptp(cmdp.objective)  # and they tell something
    assert found.assumption == ""


def test_every_part_of_the_interval_by_hand():
    """A cost that is certain has no variance: what is left is the range of a rollout, and B/T times that of a step."""
    cmdp = circle(2)
    found = ck.certify_by_simulation(cmdp, ones(cmdp), confidence=0.9, rollouts=1_000, horizon=50)
    bias, rest = bias_bound(cmdp, ones(cmdp)), 7.0 * np.log(40.0) / (3.0 * 999)
    assert found.objective == pytest.approx(0.5, abs=1e-12)
    np.testing.assert_allclose(found.objective_interval, [0.5 - bias / 50 - rest, 0.5 + bias / 50 + rest], atol=1e-12)


def test_the_length_suits_the_number_of_rollouts():
    """All parts of the interval are of one order, and shrink together."""
    cmdp, widths = flow(0.9), []
    for n in (200, 400, 800):
        found = ck.certify_by_simulation(cmdp, ones(cmdp), rollouts=n)
        assert found.samples == n * found.horizon
        assert bias_bound(cmdp, ones(cmdp)) / found.horizon <= 7.0 * np.log(160.0) / (3.0 * (n - 1))
        widths.append(np.ptp(found.objective_interval))
    assert 1.7 < widths[0] / widths[1] < 2.4
    assert 1.7 < widths[1] / widths[2] < 2.4


def test_more_rollouts_decide():
    cmdp = flow(0.9).with_limits(cost=5.2)  # the average is 5
    first = ck.certify_by_simulation(cmdp, ones(cmdp), rollouts=200)
    assert first.verdicts == ["undecided"]
    again = ck.certify_by_simulation(cmdp, ones(cmdp), rollouts=2 * (200 + first.more_rollouts[0]), seed=1)
    assert again.verdicts == ["satisfied"]
    found = ck.certify_by_simulation(cmdp, ones(cmdp), rollouts=200, until_decided=True, seed=2)
    assert found.verdicts == ["satisfied"]
    assert found.horizon > first.horizon
    assert found.samples == found.rollouts * found.horizon  # of the last look, all of one length
    few = ck.certify_by_simulation(cmdp, ones(cmdp), rollouts=200, until_decided=True, max_rollouts=250)
    assert (few.rollouts, few.verdicts) == (250, ["undecided"])
    short = {"rollouts": 200, "horizon": 5}
    assert ck.certify_by_simulation(cmdp, ones(cmdp), **short).more_rollouts == [None]  # the bias hides the limit


def test_a_mixture_of_policies():
    """Each rollout draws its policy, whose average and bias are its own."""
    P = np.array([[[0.9, 0.1], [0.2, 0.8]], [[0.1, 0.9], [0.7, 0.3]]])
    cmdp = ck.CMDP(P, cost=[[0.0, 3.0], [1.0, 2.0]], average=True, initial=0, action_axis=1)
    first, second = [[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.5, 0.5]]
    mixture = ck.MixturePolicy([ck.TabularPolicy(first), ck.TabularPolicy(second)], [0.3, 0.7])
    found = ck.certify_by_simulation(cmdp, mixture, rollouts=1_000)
    low, high = found.objective_interval
    assert low <= ck.evaluate(cmdp, mixture).objective <= high
    assert high - low < 0.4


def test_the_bias_of_a_mixture_is_the_mean():
    """One policy moves at once, the other stays for 50 steps; the interval is that for the mean of their bounds."""
    P = np.array([[[0.0, 1.0], [0.98, 0.02]], [[1.0, 0.0], [0.02, 0.98]]])
    cmdp = ck.CMDP(P, cost=[[0.0, 0.0], [1.0, 1.0]], average=True, initial=1, action_axis=1)
    fast, slow = (ck.TabularPolicy(np.eye(2)[[a, a]]) for a in (0, 1))
    bounds = [bias_bound(cmdp, policy.pi) for policy in (fast, slow)]
    np.testing.assert_allclose(bounds, [0.505, 25.25], rtol=1e-4)
    mixture, settings = ck.MixturePolicy([fast, slow], [0.9, 0.1]), {"rollouts": 200, "horizon": 100}
    found = ck.certify_by_simulation(cmdp, mixture, **settings)
    stated = ck.certify_by_simulation(cmdp, mixture, **settings, mixing=0.9 * bounds[0] + 0.1 * bounds[1])
    np.testing.assert_allclose(found.objective_interval, stated.objective_interval, rtol=1e-12)


def test_a_simulator_with_a_statement():
    cmdp = flow(0.9)
    simulator, exact = twin(cmdp), ck.long_run_averages(cmdp, ones(cmdp))[0]
    found = ck.certify_by_simulation(simulator, ones(cmdp), rollouts=300, mixing=10)
    assert found.objective_interval[0] <= exact <= found.objective_interval[1]
    assert "comes to one common state within 10 steps on average" in found.assumption
    proved = ck.certify_by_simulation(cmdp, ones(cmdp), rollouts=300)
    assert np.ptp(found.objective_interval) == pytest.approx(np.ptp(proved.objective_interval), rel=0.2)
    stated = ck.certify_by_simulation(cmdp, ones(cmdp), rollouts=300, horizon=100, mixing=20.0)  # instead of a proof
    assert "within 20 steps" in stated.assumption
    # No range is forgotten: 20 steps of 100, times 10
    assert np.ptp(stated.objective_interval) > 4.0
    assert "average=True" in repr(simulator)


def test_rollouts_do_not_depend_on_how_the_work_is_divided():
    cmdp = flow(0.9)
    settings = {"rollouts": 2_500, "horizon": 4, "mixing": 10}
    one, other = (ck.certify_by_simulation(twin(cmdp, block=b), ones(cmdp), **settings) for b in (10, 100))
    assert one.objective_interval == other.objective_interval  # a thousand at a time in any case


# -- learning ---------------------------------------------------------------------------------------------------------

POOLED = {"estimator": "pooled", "rollouts": 100}


@pytest.mark.parametrize("seed", [1, 4, 6])
def test_learned_policies_come_to_the_optimum(seed):
    """Against the LP; seed 1 has period 2. The error of 6,000 transitions per pair is about 1/sqrt(6000) of a span."""
    cmdp = unichain(seed)
    result = ck.solve(cmdp, "pmd-pd", sampling=ck.Sampling(**POOLED), max_iterations=60, seed=1)
    assert abs(result.objective - average_lp(cmdp)) <= 0.02 * cmdp.spans[0]
    assert (cmdp.violations(np.asarray(result.violations)) <= 0.02 * cmdp.stated(cmdp.spans[1:])).all()
    assert result.samples == 61 * 100 * cmdp.pairs.count


def test_a_simulator_is_learned_and_judged():
    cmdp = unichain(6)
    few = ck.Sampling(**POOLED, certificate_rollouts=200, mixing=6.0)
    result = ck.solve(twin(cmdp), sampling=few, max_iterations=15, seed=2)
    assert bias_bound(cmdp, result.policy.pi) < 6.0
    truth = ck.evaluate(cmdp, result.policy)
    low, high = result.certificate.objective_interval
    assert low <= truth.objective <= high
    assert abs(truth.objective - average_lp(cmdp)) <= 0.03 * cmdp.spans[0]
    assert "within 6 steps on average" in result.certificate.assumption
    assert "long-run average" in str(result)
    unproved = ck.solve(twin(cmdp), max_iterations=3)  # pooled by default
    assert unproved.certificate is None
    assert "Sampling(mixing=...)" in unproved.message


@pytest.mark.parametrize("seed", [1, 4])
def test_estimates_tend_to_gain_bias_and_visits(seed):
    cmdp = unichain(seed)
    policy = ck.TabularPolicy(random_policy(cmdp, 3))
    pooled = Pooled(as_simulator(cmdp, others=True), 40_000, 1_000, Meter(1))
    found, exact = pooled.outlook(policy), ck.evaluate(cmdp, policy)
    assert found.visits.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(found.visits, exact.occupancy.sum(axis=1), atol=0.01)
    values = cmdp.user_objective(found.values[0]), *cmdp.user_constraint_values(found.values[1:])
    np.testing.assert_allclose(values, [exact.objective, *exact.constraint_values], atol=0.01 * cmdp.spans.max())
    np.testing.assert_allclose(pooled.values(policy), found.values, atol=0.01 * cmdp.spans.max())
    # Advantages, as the first state is not known and shifts all values
    q, mine = exact.action_values[0], cmdp.sense * found.q[:, 0].reshape(cmdp.states, -1)
    advantage, learned = (x - (policy.probabilities * x).sum(axis=1, keepdims=True) for x in (q, mine))
    np.testing.assert_allclose(learned, advantage, atol=0.05 * cmdp.spans[0])
    mix = np.append(1.0, np.zeros(cmdp.num_rows))
    again = cmdp.sense * pooled.action_values(policy, mix, np.zeros(cmdp.states), 1)
    np.testing.assert_allclose(
        again - (policy.probabilities * again).sum(axis=1, keepdims=True), advantage, atol=0.05 * cmdp.spans[0]
    )


def test_links_that_have_not_been_seen_yet():
    """Two parts that lead to each other once in a hundred steps: twenty draws of each pair show none of it."""
    rare = 0.01
    P = np.zeros((2, 2, 2))
    P[0], P[1] = [1.0 - rare, rare], [rare, 1.0 - rare]
    limit = ck.AtMost([[1.0, 1.0], [0.0, 0.0]], 0.6, name="first")
    cmdp = ck.CMDP(P, cost=[[1.0, 1.5], [2.0, 3.0]], constraints=[limit], average=True, initial=0, action_axis=1)
    uniform = ck.TabularPolicy.uniform(2, 2)
    seeds = [s for s in range(20) if Pooled(as_simulator(cmdp, others=True), 20, 10, Meter(s)).model().gamma < 1.0]
    assert seeds
    pooled = Pooled(as_simulator(cmdp, others=True), 20, 10, Meter(seeds[0]))
    assert pooled.model().gamma == pytest.approx(20 / 21)
    early = pooled.values(uniform)
    assert np.isfinite(early).all()
    assert early[0] < 1.5  # it seems to stay where it starts for most of the time
    late = Pooled(as_simulator(cmdp, others=True), 20_000, 10, Meter(0))
    assert late.model().criterion == "average"
    assert abs(late.values(uniform)[0] - 1.875) < 0.1
    result = ck.solve(cmdp, sampling=ck.Sampling(estimator="pooled"), max_iterations=40, seed=seeds[0])
    assert abs(result.objective - average_lp(cmdp)) < 0.1


def test_classes_that_are_never_left():
    """The average from the start is that of both ends, weighted by the chances of ending there."""
    P = np.zeros((3, 1, 3))
    P[0, 0], P[1, 0, 1], P[2, 0, 2] = [0.0, 0.25, 0.75], 1.0, 1.0
    cmdp = ck.CMDP(P, cost=[[50.0], [4.0], [0.0]], average=True, initial=0, action_axis=1)
    pooled = Pooled(as_simulator(cmdp, others=True), 20_000, 100, Meter(0))
    assert pooled.values(ck.TabularPolicy.uniform(3, 1))[0] == pytest.approx(1.0, abs=0.05)
    assert pooled.outlook(ck.TabularPolicy.uniform(3, 1)).visits.sum() == pytest.approx(1.0)


def test_a_learning_run_continues_from_its_checkpoint(tmp_path):
    cmdp = unichain(6)
    settings = {"method": "pmd-pd", "sampling": ck.Sampling(estimator="pooled"), "seed": 3}
    whole = ck.solve(cmdp, max_iterations=8, **settings)
    ck.solve(cmdp, max_iterations=4, checkpoint=tmp_path / "run.npz", **settings)
    rest = ck.solve(cmdp, max_iterations=8, checkpoint=tmp_path / "run.npz", resume=True, **settings)
    np.testing.assert_array_equal(rest.policy.probabilities, whole.policy.probabilities)


# -- what is refused --------------------------------------------------------------------------------------------------


def test_bad_statements_are_refused():
    cmdp = flow(0.9)
    simulator = twin(cmdp)
    with pytest.raises(ValueError, match=r"samples cannot provide.*mixing=N"):
        ck.certify_by_simulation(simulator, ones(cmdp))
    for wrong, error in ((-1.0, ValueError), (np.inf, ValueError), ("10", TypeError), (True, TypeError)):
        with pytest.raises(error, match="mixing"):
            ck.certify_by_simulation(simulator, ones(cmdp), mixing=wrong)
    with pytest.raises(ValueError, match="mixing is for long-run averages"):
        ck.certify_by_simulation(cmdp.with_criterion(gamma=0.9), ones(cmdp), mixing=10)
    with pytest.raises(ValueError, match="mixing is for long-run averages"):
        ck.solve(cmdp.with_criterion(gamma=0.9), sampling=ck.Sampling(mixing=10))
    with pytest.raises(ValueError, match="mixing"):
        ck.Sampling(mixing=-1.0)
    with pytest.raises(ValueError, match=r"10000 rollouts that are long enough .* transitions.*give horizon"):
        ck.certify_by_simulation(simulator, ones(cmdp), mixing=1e9)
    with pytest.raises(ValueError, match="give horizon"):  # before anything is learned
        ck.solve(simulator, sampling=ck.Sampling(estimator="pooled", mixing=1e9))
    with pytest.raises(ValueError, match="horizon must be at most 1e"):
        ck.certify_by_simulation(cmdp, ones(cmdp), horizon=2 * 10**9)
    with pytest.raises(ValueError, match="bounds"):
        ck.certify_by_simulation(twin(cmdp, bounds=None), ones(cmdp), mixing=10)


@pytest.mark.parametrize("estimator", ["truncated", "geometric"])
def test_rollouts_learn_no_averages(estimator):
    cmdp = flow(0.9)
    for model in (cmdp, twin(cmdp)):
        with pytest.raises(ValueError, match=r'no rollout is long enough.*Sampling\(estimator="pooled"\)'):
            ck.solve(model, sampling=ck.Sampling(estimator=estimator))


def test_other_things_that_averages_have_not():
    cmdp = flow(0.9)
    with pytest.raises(ValueError, match=r"leave out gamma=0\.9, or average=True"):
        twin(cmdp, gamma=0.9)
    with pytest.raises(TypeError, match=r"gamma is needed.*or average=True"):
        twin(cmdp, average=False)
    with pytest.raises(TypeError, match="average must be True or False"):
        twin(cmdp, average="yes")
    with pytest.raises(ValueError, match="give average=True instead of gamma"):
        twin(cmdp, gamma=1, average=False)
    for model in (cmdp, twin(cmdp)):
        with pytest.raises(ValueError, match="bound_by_simulation is for discounted models"):
            ck.bound_by_simulation(model, 1_000)
        with pytest.raises(ValueError, match="knows discounted models only"):
            ck.solve(model, sampling=ck.Sampling(schedule="theory", epsilon=0.1))
