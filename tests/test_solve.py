"""solve(): the certified optimum on hundreds of models, on degenerate ones, within budgets, and always honest."""

import signal
import threading

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cmdpkit as ck
from models import lp_optimum, random_model, two_state

TABLE = range(120)
EXACT = ("auto", "columns", "lp")


def check_optimal(cmdp, result, tol=1e-6):
    """OPTIMAL means what it says: equal to an independent LP, feasible, and with bounds that bracket the LP's value."""
    optimum, _ = lp_optimum(cmdp)
    scale = max(1.0, abs(optimum))
    assert result.status is ck.Status.OPTIMAL, (result.status, str(result.certificate))
    assert result.certificate.optimal(tol)
    assert result.objective == pytest.approx(optimum, abs=2 * tol * scale)
    assert (result.violations <= tol * np.maximum(1.0, np.abs(cmdp.limits))).all()
    assert (result.multipliers >= 0.0).all()
    # bound is on the far side of the LP's value, the objective on the near side (up to the violation that tol allows)
    sign = 1.0 if cmdp.maximise else -1.0
    assert sign * result.certificate.bound >= sign * optimum - 1e-8 * scale
    assert sign * result.objective <= sign * optimum + tol * scale
    truth = ck.evaluate(cmdp, result.policy)
    assert truth.objective == pytest.approx(result.objective, rel=1e-9, abs=1e-9)
    np.testing.assert_allclose(truth.constraint_values, result.constraint_values, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("seed", TABLE)
def test_auto_equals_the_lp(seed):
    cmdp = random_model(seed)
    check_optimal(cmdp, ck.solve(cmdp))


@pytest.mark.parametrize("method", ["lp", "columns"])
@pytest.mark.parametrize("seed", TABLE[:40])
def test_exact_methods_equal_the_lp(seed, method):
    cmdp = random_model(seed)
    check_optimal(cmdp, ck.solve(cmdp, method))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1_000, 100_000))
def test_auto_equals_the_lp_on_any_model(seed):
    cmdp = random_model(seed)
    check_optimal(cmdp, ck.solve(cmdp))


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("seed", TABLE[:30])
def test_infeasible_models_are_proved_so(seed, method):
    cmdp = random_model(seed, feasible=False)
    result = ck.solve(cmdp, method)
    assert result.status is ck.Status.INFEASIBLE
    y = result.certificate.infeasibility
    assert (y >= 0.0).all()
    assert result.certificate.infeasibility_margin > 0.0
    # a stranger's check: the cheapest policy for the weighted cost still exceeds the weighted limits
    weighted = sum(
        y[i]
        * (-1.0 if isinstance(c, ck.AtLeast) else 1.0)
        * (1.0 - cmdp.gamma if c.per_step else 1.0)
        * np.asarray(c.values)
        for i, c in enumerate(cmdp.constraints)
    )
    plain = ck.CMDP(sp.csr_array(cmdp.transitions), cost=weighted, gamma=cmdp.gamma, initial=cmdp.initial)
    assert lp_optimum(plain)[0] > float(y @ cmdp.offsets)


@pytest.mark.parametrize(
    ("method", "median", "worst"),
    [
        ("pmd-pd", 1e-6, 1e-2),
        pytest.param("npg-pd", 1e-2, np.inf, marks=pytest.mark.slow),
        pytest.param("crpo", 2e-2, np.inf, marks=pytest.mark.slow),
    ],
)
def test_first_order_methods_on_the_same_table(method, median, worst):
    """At its defaults and after 2,000 steps each method has the accuracy that it promises, by its own certificate."""
    accuracies = []
    for cmdp in (random_model(seed) for seed in TABLE[:40]):
        result = ck.solve(cmdp, method, max_iterations=2000)
        certificate = result.certificate
        optimum, _ = lp_optimum(cmdp)
        sign, scale = (1.0 if cmdp.maximise else -1.0), max(1.0, abs(optimum))
        assert sign * certificate.bound >= sign * optimum - 1e-8 * scale  # the bound is valid wherever the run stops
        assert (result.status is ck.Status.OPTIMAL) == certificate.optimal(1e-6)
        accuracies.append(max(certificate.gap, certificate.violation))
    assert np.median(accuracies) <= median
    assert max(accuracies) <= worst


def test_npg_solves_unconstrained_models():
    for seed in range(10):
        cmdp = random_model(seed, constraints=0)
        check_optimal(cmdp, ck.solve(cmdp, "npg"))


# -- degenerate models -----------------------------------------------------------------------------------------------


def paper_with(constraints, reward=1.0, gamma=0.8):
    paper = ck.problems.paper()
    utility = np.asarray(paper.constraints[0].values)
    P = np.asarray(paper.transitions).reshape(20, 10, 20)
    return ck.CMDP(P, reward=reward * paper.objective, constraints=constraints(utility), gamma=gamma)


def deterministic_with_traps():
    P = np.zeros((4, 2, 4))  # 2 absorbs, 3 is never reached
    P[0, 0, 0] = P[0, 1, 1] = P[1, 0, 1] = P[1, 1, 2] = P[2, :, 2] = P[3, :, 0] = 1.0
    rng = np.random.default_rng(1)
    cost = rng.uniform(size=(4, 2))
    return ck.CMDP(P, reward=rng.uniform(size=(4, 2)), constraints=[ck.AtMost(cost, 4.0)], gamma=0.9, initial=0)


MOST_UTILITY = 4.525027425684768
DEGENERATE = {
    "no constraints": lambda: random_model(7, constraints=0),
    "one state": lambda: ck.CMDP(
        np.ones((1, 3, 1)), reward=[[1.0, 2.0, 3.0]], constraints=[ck.AtMost([[1, 2, 3]], 10)], gamma=0.8
    ),
    "one action": lambda: ck.CMDP(
        np.ones((3, 1, 3)) / 3, cost=np.ones((3, 1)), constraints=[ck.AtMost(np.ones((3, 1)), 5.0)], gamma=0.8
    ),
    "gamma zero": lambda: paper_with(lambda g: [ck.AtLeast(g, 0.9)], gamma=0.0),
    "traps": deterministic_with_traps,
    "duplicated and redundant": lambda: paper_with(
        lambda g: [ck.AtLeast(g, 3), ck.AtLeast(g, 3), ck.AtLeast(2 * g, 6), ck.AtLeast(g, -5), ck.AtMost(g, 1e6)]
    ),
    "equality": lambda: paper_with(lambda g: [ck.AtLeast(g, 3), ck.AtMost(g, 3)]),
    "no Slater point": lambda: paper_with(lambda g: [ck.AtLeast(g, MOST_UTILITY)]),
    "almost no Slater point": lambda: paper_with(lambda g: [ck.AtLeast(g, MOST_UTILITY - 1e-9)]),
    "constant cost on its limit": lambda: paper_with(lambda g: [ck.AtMost(np.ones_like(g), 5.0)]),
    "zero cost": lambda: paper_with(lambda g: [ck.AtMost(np.zeros_like(g), 0.0)]),
    "zero reward": lambda: paper_with(lambda g: [ck.AtLeast(g, 3)], reward=0.0),
    "randomises in several states": lambda: paper_with(
        lambda g: [ck.AtLeast(np.roll(g, i, axis=i % 2), 2.65) for i in range(4)]
    ),
    "eight constraints": lambda: paper_with(lambda g: [ck.AtLeast(np.roll(g, i, axis=i % 2), 2.55) for i in range(8)]),
    "gamma 0.9999": lambda: paper_with(lambda g: [ck.AtLeast(g, 0.6, per_step=True)], gamma=0.9999),
    "large costs": lambda: paper_with(lambda g: [ck.AtLeast(1e6 * g, 3e6)], reward=1e6),
    "small costs": lambda: paper_with(lambda g: [ck.AtLeast(1e-6 * g, 3e-6)], reward=1e-6),
}


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_models(name, method):
    cmdp = DEGENERATE[name]()
    check_optimal(cmdp, ck.solve(cmdp, method))


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_units_do_not_change_the_answer(method, factor):
    """Relative accuracy holds in every unit, although `tol` is relative to max(1, |objective|)."""
    cmdp = paper_with(lambda g: [ck.AtLeast(factor * g, 3.0 * factor)], reward=factor)
    result = ck.solve(cmdp, method)
    assert result.objective / factor == pytest.approx(4.462443636256558, rel=1e-8)
    assert result.multipliers[0] == pytest.approx(0.24266971, abs=1e-7)
    assert result.constraint_values[0] / factor == pytest.approx(3.0, rel=1e-9)


@pytest.mark.parametrize("method", EXACT)
def test_wildly_different_units_at_once(method):
    """Reward in millions, one limit in millionths, one in thousands: the same answer as with all in units."""

    def model(a, b, c):
        return paper_with(lambda g: [ck.AtLeast(b * g, 3 * b), ck.AtMost(c * np.roll(g, 3, axis=0), 2.3 * c)], reward=a)

    plain, mixed = ck.solve(model(1, 1, 1), "lp"), ck.solve(model(1e6, 1e-6, 1e3), method)
    assert mixed.status is ck.Status.OPTIMAL
    assert mixed.objective / 1e6 == pytest.approx(plain.objective, rel=1e-8)
    np.testing.assert_allclose(mixed.multipliers * [1e-12, 1e-3], plain.multipliers, rtol=1e-5, atol=1e-8)
    # the margin of the limit in millionths decides: 1.5 millionths at most
    assert 0.0 < ck.slater_margin(model(1e6, 1e-6, 1e3)) < 1.6e-6


@pytest.mark.parametrize("method", EXACT)
def test_a_limit_just_out_of_reach_is_infeasible(method):
    cmdp = paper_with(lambda g: [ck.AtLeast(g, MOST_UTILITY + 1e-9)])
    result = ck.solve(cmdp, method)
    assert result.status is ck.Status.INFEASIBLE
    assert 0.0 < result.certificate.infeasibility_margin < 1.1e-9
    # the policy at hand is the one that misses the limit least
    assert result.violations[0] < 2e-9


def test_optimum_that_must_randomise():
    cmdp = DEGENERATE["randomises in several states"]()
    policy = ck.solve(cmdp).policy.probabilities
    assert ((policy > 1e-6) & (policy < 1 - 1e-6)).any(axis=1).sum() >= 2


def test_closed_form():
    for gamma, limit in [(0.5, 0.7), (0.9, 2.0), (0.99, 10.0)]:
        result = ck.solve(two_state(gamma, limit), tol=1e-10)
        assert result.status is ck.Status.OPTIMAL
        assert result.objective == pytest.approx(1.0 / (1.0 - gamma) + (1.0 - gamma) * limit, rel=1e-10)
        assert result.multipliers[0] == pytest.approx(1.0 - gamma, rel=1e-6)
        risk = limit * (1.0 - gamma) / (1.0 - limit * gamma * (1.0 - gamma))
        assert result.policy.probabilities[0, 1] == pytest.approx(risk, rel=1e-8)


def test_the_papers_instance():
    for method in EXACT:
        result = ck.solve(ck.problems.paper(), method)
        assert result.objective == pytest.approx(4.462443636256558, abs=1e-8)
        assert result.multipliers[0] == pytest.approx(0.24266971, abs=1e-7)
        assert result.certificate.gap <= 1e-6


def test_multipliers_are_the_lps_where_unique():
    for seed in range(15):
        cmdp = random_model(seed, constraints=2, gamma=0.9)
        _, duals = lp_optimum(cmdp)
        np.testing.assert_allclose(ck.solve(cmdp, tol=1e-9).multipliers, duals, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_slater_margin_against_bisection(seed):
    """ξ is where tightening all limits by ξ turns from feasible to infeasible."""
    cmdp = random_model(seed, constraints=3, gamma=0.8)
    xi = ck.slater_margin(cmdp)

    def tightened(margin):
        moved = [type(c)(c.values, c.limit - c.sign * margin, per_step=c.per_step) for c in cmdp.constraints]
        objective = {"reward" if cmdp.maximise else "cost": cmdp.objective}
        return ck.CMDP(sp.csr_array(cmdp.transitions), constraints=moved, gamma=0.8, initial=cmdp.initial, **objective)

    assert ck.solve(tightened(xi - 1e-6)).status is ck.Status.OPTIMAL
    assert ck.solve(tightened(xi + 1e-6)).status is ck.Status.INFEASIBLE


def test_slater_margin_of_known_models():
    assert ck.slater_margin(ck.problems.paper()) == pytest.approx(1.525027425684768, abs=1e-9)
    assert ck.slater_margin(random_model(1, constraints=0)) == float("inf")
    assert ck.slater_margin(paper_with(lambda g: [ck.AtLeast(g, 5.0)])) == pytest.approx(MOST_UTILITY - 5.0, abs=1e-9)


# -- budgets, interrupts, repeatability ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["auto", "columns", "pmd-pd", "npg-pd", "crpo"])
def test_iteration_limit_keeps_the_best_so_far(method):
    cmdp = ck.problems.garnet(states=220 if method == "auto" else 50)  # a small model takes `auto` one iteration
    result = ck.solve(cmdp, method, max_iterations=2)
    assert result.status is ck.Status.ITERATION_LIMIT
    assert result.iterations == 2
    assert "max_iterations" in result.message
    optimum, _ = lp_optimum(cmdp)
    assert result.certificate.bound >= optimum - 1e-8
    assert ck.evaluate(cmdp, result.policy).objective == pytest.approx(result.objective, rel=1e-9)


@pytest.mark.parametrize("method", ["auto", "columns", "pmd-pd", "crpo", "lp"])
def test_time_limit(method):
    """No time at all leaves no work done, and the policy that the run would have begun with."""
    cmdp, heard = ck.problems.two_queues(capacity=20), []
    result = ck.solve(cmdp, method, tol=1e-12, time_limit=0.0, callback=heard.append)
    assert result.status is ck.Status.TIME_LIMIT
    if method == "lp":  # which tells once, at its end; HiGHS looks at the clock only after some iterations
        assert len(heard) == len(result.history) == 1
    else:
        assert len(heard) == len(result.history) == result.iterations == 0
    np.testing.assert_allclose(result.policy.probabilities, np.full((441, 9), 1.0 / 9.0), rtol=1e-12)


@pytest.mark.parametrize("method", ["pmd-pd", "crpo", "columns"])
def test_ctrl_c_leaves_a_valid_result(method):
    cmdp = ck.problems.two_queues(capacity=25)

    def press(snapshot):
        if snapshot.iteration == 2:
            signal.raise_signal(signal.SIGINT)

    assert threading.current_thread() is threading.main_thread()
    result = ck.solve(cmdp, method, tol=1e-12, callback=press)
    assert result.status is ck.Status.INTERRUPTED
    assert result.iterations == 2
    assert ck.certify(cmdp, result.policy).objective == pytest.approx(result.objective, rel=1e-9)


def test_callback_hears_everything_and_can_stop():
    heard = []

    def watch(snapshot):
        heard.append(snapshot)
        return snapshot.iteration == 3  # the fifth is proved to be optimal

    result = ck.solve(ck.problems.paper(), "pmd-pd", callback=watch)
    assert result.status is ck.Status.INTERRUPTED
    assert [s.iteration for s in heard] == [1, 2, 3]
    np.testing.assert_array_equal([s.objective for s in heard], result.history.objective)


def test_a_tolerance_below_rounding_is_not_claimed():
    result = ck.solve(ck.problems.paper(), tol=0.0)
    assert result.status is ck.Status.NUMERICAL_ERROR
    assert result.certificate.gap < 1e-12


@pytest.mark.parametrize("method", ["auto", "pmd-pd", "npg-pd", "crpo", "columns", "lp"])
def test_same_seed_same_bits(method):
    first, second = (ck.solve(ck.problems.garnet(), method, max_iterations=50, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.policy.log_probabilities, second.policy.log_probabilities)
    for column in first.history.columns:
        if column != "time":
            np.testing.assert_array_equal(first.history[column], second.history[column])


def test_result_reads_well_and_saves(tmp_path):
    result = ck.solve(ck.problems.paper())
    text = str(result)
    assert "OPTIMAL" in text
    assert "4.46244364" in text
    assert "utility" in text
    result.save(tmp_path / "result.json")
    import json

    stored = json.loads((tmp_path / "result.json").read_text())
    assert stored["status"] == "optimal"
    assert stored["constraints"][0]["multiplier"] == pytest.approx(0.24266971, abs=1e-7)
    assert result.history["objective"] is result.history.objective
    with pytest.raises(KeyError, match="objective"):
        result.history["no such column"]


def test_large_sparse_model_takes_the_sparse_path():
    cmdp = ck.problems.two_queues(capacity=20)
    assert sp.issparse(cmdp.transitions)
    check_optimal(cmdp, ck.solve(cmdp))
