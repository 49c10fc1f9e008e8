"""Theorem A of docs/theory.md along real runs: Lemmas 1 and 2 and the recursion; and the models that need it."""

import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.experiments import growing_bounds
from cmdpkit.learners import ExactLearner
from cmdpkit.learners.tabular import LOWEST_LOG_PROBABILITY
from cmdpkit.primal_dual import primal_dual
from cmdpkit.rules import growing
from cmdpkit.rules.base import View
from cmdpkit.rules.growing import GrowingPMDPD, allowed_error, errors
from models import lp_optimum, random_model

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from hard import hard_model, medium_model

CYCLES = 269
"""A seed of `hard_model` on which the method without its tests jumps between policies for ever."""


def exact_visits(cmdp, pi):
    """Discounted visits to every pair by dense algebra."""
    P = np.asarray(cmdp.transitions.toarray() if hasattr(cmdp.transitions, "toarray") else cmdp.transitions)
    P = P.reshape(cmdp.states, cmdp.actions, cmdp.states)
    flow = np.eye(cmdp.states) - cmdp.gamma * np.einsum("sa,sat->ts", pi, P)
    return np.linalg.solve(flow, cmdp.initial)[:, None] * pi


def divergence(x, log_pi, log_other):
    """D(x, y) = Σ x(s, a) log(π_x/π_y)(a|s)."""
    ratio = np.where(x > 0.0, log_pi - log_other, 0.0)
    return float((x * ratio).sum())


def policies_like(cmdp, rng, count=4):
    """Random policies, and a deterministic one."""
    random = [rng.dirichlet(np.full(cmdp.actions, 0.5), cmdp.states) for _ in range(count)]
    return [*random, np.eye(cmdp.actions)[rng.integers(0, cmdp.actions, cmdp.states)]]


class Watched:
    """A run of the rule that records, for every candidate, everything that the lemmas speak of."""

    def __init__(self, cmdp, noise=0.0, seed=0):
        uniform = ck.TabularPolicy.uniform(cmdp.states, cmdp.actions)
        self.cmdp, self.learner = cmdp, ExactLearner(cmdp, uniform, floor=LOWEST_LOG_PROBABILITY)
        if noise:
            self._disturb(noise, np.random.default_rng(seed))

    def _disturb(self, noise, rng):
        """Evaluate the mixed cost wrongly: Lemma 1 does not ask how V̄ was found."""
        direction = self.learner._direction
        largest = noise * self.cmdp.cost_sizes[0] / (1.0 - self.cmdp.gamma)

        def wrong(cost, anchor, step, alpha, guess):
            found, values = direction(cost, anchor, step, alpha, guess)
            error = largest * rng.normal(size=self.cmdp.states)
            P = self.cmdp.transitions
            return found + self.cmdp.gamma * (P @ error).reshape(cost.shape), values + error

        self.learner._direction = wrong

    def steps(self, count):
        for iterate in islice(primal_dual(self.learner, GrowingPMDPD()), count):
            weights, state = iterate.weights, iterate.state
            if weights.anchor != "return":
                before = self.learner._anchor.log_probabilities
                accepted = state.rejected == 0
                yield iterate, before, self.learner.policy.log_probabilities, weights.step, accepted


MODELS = {
    "one constraint": lambda: random_model(3, constraints=1, gamma=0.9, states=6),
    "three constraints": lambda: random_model(8, constraints=3, gamma=0.8, states=5),
    "deterministic, cycles without the tests": lambda: hard_model(CYCLES)[0],
    "equalities": lambda: hard_model(3)[0],
}


@pytest.mark.parametrize("noise", [0.0, 1e-3])
@pytest.mark.parametrize("name", MODELS)
def test_lemma_1_is_an_identity(name, noise):
    """τ⟨c_w, x⁺ − x⟩ = D(x, x_k) − D(x, x⁺) − D(x⁺, x_k) + Σ (x − x⁺)ℓ, also for values V̄ that are wrong."""
    cmdp, rng = MODELS[name](), np.random.default_rng(1)
    watched = Watched(cmdp, noise)
    seen = 0
    for iterate, before, log_pi, step, _ in watched.steps(12):
        level = watched.learner.log_normaliser
        new = exact_visits(cmdp, np.exp(log_pi))
        cost = (np.append(1.0, iterate.weights.constraints) @ cmdp.costs).reshape(new.shape)
        for pi in policies_like(cmdp, rng):
            x = exact_visits(cmdp, pi)
            with np.errstate(divide="ignore"):
                own = np.log(pi)
            parts = (
                divergence(x, own, before),
                -divergence(x, own, log_pi),
                -divergence(new, log_pi, before),
                float(((x - new).sum(axis=1) * level).sum()),
            )
            left = step * float((cost * (new - x)).sum())
            size = max(1.0, step * float(np.abs(cost).max()) / (1.0 - cmdp.gamma), *np.abs(parts))
            assert left == pytest.approx(sum(parts), abs=1e-11 * size / (1.0 - cmdp.gamma))
            # and the error of the visits is at most what the view tells, the left side of (T1)
            told = watched.learner.look().visit_error
            assert parts[3] <= told + 1e-11 * size / (1.0 - cmdp.gamma)
            seen += 1
    assert seen >= 40


@pytest.mark.parametrize("noise", [0.0, 1e-3])
@pytest.mark.parametrize("name", MODELS)
def test_lemma_2_and_the_recursion(name, noise):
    """At random (x, λ) for every step; S_{k+1} ≤ max(1, S_k) + 2e_k at a saddle point; with the measured e_k."""
    cmdp, rng = MODELS[name](), np.random.default_rng(2)
    optimum = ck.solve(cmdp, tol=1e-11)
    star = exact_visits(cmdp, optimum.policy.probabilities)
    with np.errstate(divide="ignore"):
        log_star = np.log(optimum.policy.probabilities)
    watched = Watched(cmdp, noise)
    start = watched.learner.look()
    M = start.dual_step(1.0) * start.known_scales[0]  # η′/step
    lam_before = np.zeros(cmdp.num_constraints)
    checked = 0
    for iterate, before, log_pi, step, accepted in watched.steps(14):
        view, lam = watched.learner.look(), iterate.multipliers
        # the state's own steps have grown since
        e = max(0.0, *errors(iterate.state._replace(step=step, eta_dual=step * M), view))
        new = exact_visits(cmdp, np.exp(log_pi))
        values = cmdp.costs @ new.ravel() - np.append(0.0, cmdp.offsets)
        rounding = 1e-9 * max(1.0, step * cmdp.cost_sizes.max() * (1.0 + lam.sum()) / (1.0 - cmdp.gamma) ** 2)
        points = [
            (exact_visits(cmdp, pi), pi, rng.exponential(size=lam.size) * start.units)
            for pi in policies_like(cmdp, rng)
        ]
        points.append((star, optimum.policy.probabilities, optimum.multipliers))
        for x, pi, mu in points:
            with np.errstate(divide="ignore"):
                own = np.log(pi)
            other = cmdp.costs @ x.ravel() - np.append(0.0, cmdp.offsets)
            left = step * (values[0] + mu @ values[1:] - other[0] - lam @ other[1:])
            fall = divergence(x, own, before) - divergence(x, own, log_pi) - 0.5 * divergence(new, log_pi, before)
            fall += 0.5 * (((mu - lam_before) ** 2 - (mu - lam) ** 2 - 0.5 * (lam - lam_before) ** 2) / M).sum()
            assert left <= fall + e * (1.0 + np.sqrt(((mu - lam) ** 2 / M).sum())) + rounding
            checked += 1
        if accepted:
            s_before, s_after = (
                np.sqrt(2.0 * max(0.0, divergence(star, log_star, log)) + ((optimum.multipliers - mu) ** 2 / M).sum())
                for log, mu in ((before, lam_before), (log_pi, lam))
            )
            assert s_after <= max(1.0, s_before) + 2.0 * e + np.sqrt(rounding)
            assert e <= allowed_error(iterate.state, cmdp.gamma)
            lam_before = lam
    assert checked >= 50


def test_without_its_tests_and_lines_the_method_cycles(monkeypatch):
    """One of the small deterministic models on which steps that only grow jump between policies for ever."""
    cmdp, _ = hard_model(CYCLES)
    guarded = ck.solve(cmdp, "pmd-pd", max_iterations=300)
    assert guarded.status is ck.Status.OPTIMAL
    assert guarded.objective == pytest.approx(lp_optimum(cmdp)[0], rel=3e-6)
    monkeypatch.setattr(growing, "ALLOWED", np.inf)
    monkeypatch.setattr("cmdpkit.rules.bounded_dual.EXCESS", np.inf)
    free = ck.solve(cmdp, "pmd-pd", max_iterations=300)
    assert free.status is ck.Status.ITERATION_LIMIT
    # Where in its cycle it is stopped depends on rounding; everywhere it is far from 1e-6
    assert max(free.certificate.gap, free.certificate.violation) > 1e-2


@pytest.mark.parametrize("seed", range(40))
def test_hard_models_are_solved(seed):
    """Deterministic transitions; degenerate limits, none with room, equalities, limits twice; γ up to 0.999."""
    cmdp, _ = hard_model(10_000 + seed)
    result = ck.solve(cmdp, "pmd-pd", max_iterations=1_000)
    assert result.status is ck.Status.OPTIMAL
    assert result.objective == pytest.approx(lp_optimum(cmdp)[0], rel=3e-6, abs=3e-6)


def test_backups_settle_states_that_are_hardly_visited(monkeypatch):
    """A grid that starts in a corner: without backups (T1) fails again and again while nothing changes on the way."""
    cmdp, _ = medium_model(77)
    result = ck.solve(cmdp, "pmd-pd", max_iterations=300)
    assert result.status is ck.Status.OPTIMAL
    assert result.iterations <= 30
    assert result.objective == pytest.approx(ck.solve(cmdp).objective, rel=3e-6)
    monkeypatch.setattr("cmdpkit.learners.exact.BACKUPS", 1)
    assert ck.solve(cmdp, "pmd-pd", max_iterations=45).status is ck.Status.ITERATION_LIMIT


def test_a_run_that_retries_continues_bit_for_bit(tmp_path):
    """Stopped between two candidates of one macro step: the checkpoint has anchor, multipliers and known policies."""
    cmdp, _ = hard_model(CYCLES)
    whole = ck.solve(cmdp, "pmd-pd", tol=0.0, max_iterations=40)
    learner = ExactLearner(cmdp, ck.TabularPolicy.uniform(cmdp.states, 2), floor=LOWEST_LOG_PROBABILITY)
    rejected = [iterate.state.rejected for iterate in islice(primal_dual(learner, GrowingPMDPD()), 40)]
    stops = [k + 1 for k, count in enumerate(rejected) if count > 0]
    assert len(stops) >= 3
    for stop in (stops[0], stops[1], stops[-1]):
        path = tmp_path / f"{stop}.npz"
        ck.solve(cmdp, "pmd-pd", tol=0.0, max_iterations=stop, checkpoint=path)
        again = ck.solve(cmdp, "pmd-pd", tol=0.0, max_iterations=40, checkpoint=path, resume=True)
        np.testing.assert_array_equal(again.history.objective, whole.history.objective)
        np.testing.assert_array_equal(again.history.multipliers, whole.history.multipliers)


def test_the_weighted_mean_of_the_multipliers():
    """λ̄ = Σ τ_k λ_{k+1} / Σ τ_k over the accepted steps, and the prover may use it."""
    cmdp = random_model(3, constraints=2, gamma=0.9, states=6)
    learner = ExactLearner(cmdp, ck.TabularPolicy.uniform(cmdp.states, cmdp.actions), floor=LOWEST_LOG_PROBABILITY)
    steps, multipliers = [], []
    for iterate in islice(primal_dual(learner, GrowingPMDPD()), 8):
        if iterate.state.rejected == 0:
            steps.append(iterate.weights.step)
            multipliers.append(iterate.multipliers)
        np.testing.assert_allclose(iterate.state.average, np.average(multipliers, axis=0, weights=steps), rtol=1e-12)


def test_ordinary_models_are_not_slowed_down(monkeypatch):
    """No candidate is rejected on small models of the catalogue: with one growth, the iterates as without tests."""
    for make in (ck.problems.paper, ck.problems.two_queues, ck.problems.garnet, ck.problems.wireless):
        guarded = ck.solve(make(), "pmd-pd", growth=3.0)
        with monkeypatch.context() as patch:
            patch.setattr(growing, "ALLOWED", np.inf)
            free = ck.solve(make(), "pmd-pd", growth=3.0)
        assert guarded.iterations == free.iterations
        np.testing.assert_array_equal(guarded.history.objective, free.history.objective)


# -- what `cmdpkit reproduce adaptive` draws ---------------------------------------------------------------------------


BOUNDED = {
    "paper": ck.problems.paper,
    "random": lambda: random_model(8, constraints=3),
    "hard": lambda: hard_model(CYCLES)[0],
}


@pytest.mark.parametrize("name", BOUNDED)
def test_errors_lie_below_the_bounds_of_theorem_a(name):
    """Gap, violation and certified gap against the a-posteriori bounds (a), (b), (c), at every accepted step."""
    rows = list(growing_bounds.measured(BOUNDED[name](), 14))
    assert len(rows) >= (3 if name == "hard" else 5)
    for _, gap, gap_bound, violation, violation_bound, certified, certified_bound in rows:
        assert gap <= gap_bound * (1.0 + 1e-9) + 1e-9
        assert violation <= violation_bound * (1.0 + 1e-9) + 1e-9
        assert certified <= certified_bound * (1.0 + 1e-9) + 1e-9
    assert name == "hard" or rows[-1][6] < 0.05 * rows[0][6]  # on hard models the first steps measure large errors


def test_the_parabola_of_theorem_b():
    """log₃|V| has second differences of −1 in the mean; in double precision the run follows the same numbers."""
    cmdp = growing_bounds.small_instance()
    logs = np.array(growing_bounds.extended(cmdp, 20))
    curvature = (logs[4:] - 2.0 * logs[2:-2] + logs[:-4]) / (4.0 * np.log10(3.0))
    np.testing.assert_allclose(curvature[-4:], -1.0, atol=0.02)
    history = ck.solve(cmdp, "pmd-pd", tol=0.0, max_iterations=7, growth=3.0).history
    values = np.abs(history.constraint_values[:, 0] - cmdp.limits[0])
    np.testing.assert_allclose(np.log10(values), logs[:7], rtol=0.02)


def test_steps_grow_as_far_as_the_tests_allow():
    """Errors are of second order in the step: β = 1/√(part of e that was used), between 5 and 100.

    After retries it is 5.
    """

    class Seen(View):
        visit_error, divergence = 0.0, 0.0

        def greedy_gain(self, multipliers):
            return 1.0

    def factor(missed, rejected=0, **options):
        rule, view = GrowingPMDPD(**options), Seen(0.0, np.array([missed]), np.ones(2), 0.0)
        state = rule.start(view)._replace(step=1.0, eta_dual=np.ones(1), rejected=rejected)
        return rule.observe(state, view).step

    # γ = 0 and unit scales: e = 100, (T2) allows 1 and |V − v⁺| is what it uses
    used = (0.0, 1e-5, 4e-4, 0.01, 0.04, 0.25, 1.0)
    assert [factor(x) for x in used] == pytest.approx([100.0, 100.0, 50.0, 10.0, 5.0, 5.0, 5.0])
    assert factor(1.01) == 1.0  # rejected
    assert factor(1e-4, rejected=2) == 5.0
    assert factor(1e-4, growth=2.0) == 2.0


def test_steps_begin_with_backups_until_the_policy_has_caught_up():
    """After (T1) has failed, while it needs more than a hundredth of e = 100. Then a grid takes few steps."""

    class Seen(View):
        divergence = 0.0
        visit_error = 0.0

        def greedy_gain(self, multipliers):
            return 1.0

    class Later(Seen):
        visit_error = 1.1

    class Failed(Seen):
        visit_error = 101.0

    def lags(view_type, **state):
        rule, view = GrowingPMDPD(), view_type(0.0, np.zeros(1), np.ones(2), 0.0)
        return bool(rule.observe(rule.start(view)._replace(step=1.0, eta_dual=np.ones(1), **state), view).lagging)

    assert lags(Failed)
    assert lags(Seen, rejected=1, lagging=1)
    assert not lags(Seen, rejected=1)  # by (T2)
    assert lags(Later, lagging=1)
    assert not lags(Later)
    assert not lags(Seen, lagging=1)
    assert ck.solve(ck.problems.grid(rows=20, columns=20, gamma=0.999), "pmd-pd").iterations <= 13  # 15 without


def test_the_two_tests_by_hand():
    """step 2, η′ = 0.5: M = 1/4. λ moves by 3, so ‖Δλ‖²_* = 36; a step of length 4 + 18 may err by 11 more.

    A second limit has no price before and after: only a value above 0 would be an error.
    """

    class Seen(View):
        visit_error = 20.0
        divergence = 4.0

    view = Seen(0.0, np.array([7.0, -50.0]), np.ones(3), 0.5)
    numbers = {"multipliers": np.array([3.0, 0.0]), "anchored": np.zeros(2), "eta_dual": np.full(2, 0.5)}
    state = GrowingPMDPD().start(view)._replace(**numbers, step=2.0)
    held, missed = errors(state, view)
    # 20 − ½ (4 + ½ · 36), and 2 · sqrt(¼ · (7 − 3/0.5)²)
    assert held == pytest.approx(9.0)
    assert missed == pytest.approx(1.0)


@pytest.mark.parametrize(("value", "rejected"), [(1.0, 0), (1.99, 0), (2.01, 1), (3.0, 1)])
def test_values_that_were_not_predicted_count_a_hundredfold(value, rejected):
    """e = 100/(1 − γ) = 200 with γ = 0.5; (T2) allows 2 of it, and prices that stay count on 0."""

    class Seen(View):
        visit_error = 150.0
        divergence = 0.0

        def greedy_gain(self, multipliers):
            return 1.0

    view = Seen(0.0, np.array([value]), np.ones(2), 0.5)
    lam = np.array([3.0])
    numbers = {"multipliers": lam, "anchored": lam, "step": 2.0, "eta_dual": np.array([0.5])}
    state = GrowingPMDPD().start(view)._replace(**numbers)
    assert errors(state, view) == pytest.approx((150.0, value))
    after = GrowingPMDPD().observe(state, view)
    assert after.rejected == rejected
    assert after.step == (2.0 if rejected else 10.0)


def test_an_objective_of_zero_is_proved_at_once():
    """There the bound is below 0 by an underflow, which no part of the size of the costs could allow."""
    limits = [ck.AtMost([[1.0, 10.0], [0.0, 10.0]], 1001.0)]
    transitions = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
    cmdp = ck.CMDP(transitions, action_axis=1, cost=np.zeros((2, 2)), constraints=limits, gamma=0.999, initial=0)
    result = ck.solve(cmdp, "pmd-pd")
    assert result.status is ck.Status.OPTIMAL
    assert result.iterations <= 10
