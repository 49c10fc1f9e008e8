"""The loop with the exact learner: against hand computations, an independent loop, and known figures."""

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.evaluation import PolicySystem
from cmdpkit.learners import ExactLearner
from cmdpkit.primal_dual import primal_dual
from cmdpkit.rules import PMDPD, Weights
from cmdpkit.rules.growing import ROUGHEST
from models import lp_optimum, random_model, two_state


@pytest.fixture(scope="module")
def paper():
    return ck.problems.paper()


def one_state(limit=1.0):
    """S = 1: values are Σ_a π(a) c(a) / (1 − γ), so that a step can be worked out by hand. γ = 0.5."""
    return ck.CMDP(
        np.ones((1, 2, 1)), reward=[[1.0, 3.0]], constraints=[ck.AtMost([[0.0, 2.0]], limit, name="c")], gamma=0.5
    )


def logistic(x):
    return 1.0 / (1.0 + np.exp(-x))


def run(cmdp, method, k, **options):
    return ck.solve(cmdp, method, tol=0.0, max_iterations=k, **options)


def test_pmdpd_first_step_by_hand():
    # π₀ = (½, ½): V_c = (0 + 2)/2/(1 − 0.5) = 2, so V₁ = 2 − 1 = 1, λ₀ = max(0, −0.1) = 0, weight 0 + 0.1·1.
    # c̃ = −r + 0.1 c = (−1, −3 + 0.2); what lies ahead is equal for both actions: the log-odds move by step·1.8.
    result = run(one_state(), "pmd-pd", 1, step=0.25, eta_dual=0.1)
    p = logistic(0.25 * 1.8)
    np.testing.assert_allclose(result.last_policy.probabilities, [[1.0 - p, p]], rtol=1e-14)
    assert result.history.objective[0] == pytest.approx(2.0 * (1.0 + 2.0 * p), rel=1e-14)
    assert result.history.constraint_values[0, 0] == pytest.approx(4.0 * p, rel=1e-14)
    # λ₁ = max(−0.1·V₁(π₁), 0 + 0.1·V₁(π₁)) with V₁(π₁) = 4p − 1 > 0
    assert result.history.multipliers[0, 0] == pytest.approx(0.1 * (4.0 * p - 1.0), rel=1e-13)


def test_npgpd_first_two_steps_by_hand():
    # λ₀ = 0: the first step sees the reward alone; λ₁ = 0.1·V₁(π₀) = 0.1; the second step uses c̃ = −r + 0.1 c.
    result = run(one_state(), "npg-pd", 2, step=0.25, eta_dual=0.1)
    assert result.history.multipliers[0, 0] == pytest.approx(0.1, rel=1e-14)
    p1, p2 = logistic(0.25 * 2.0), logistic(0.25 * 2.0 + 0.25 * 1.8)
    np.testing.assert_allclose(result.history.constraint_values[:, 0], [4.0 * p1, 4.0 * p2], rtol=1e-13)
    assert result.history.multipliers[1, 0] == pytest.approx(0.1 + 0.1 * (4.0 * p1 - 1.0), rel=1e-13)


def test_npgpd_is_capped():
    result = run(one_state(limit=0.1), "npg-pd", 50, step=0.25, eta_dual=1.0, dual_cap=0.3)
    assert result.history.multipliers.max() == 0.3


def test_the_default_cap_grows_with_the_costs():
    """2 max(1, |c_0|) / ((1 − γ) ξ): no use at all leaves the whole limit as the margin ξ."""
    for reward, limit, cap in ((0.5, 1.0, 4.0), (10.0, 1.0, 40.0), (10.0, 0.25, 160.0)):
        constraints = [ck.AtMost([[0.0, 2.0]], limit)]
        cmdp = ck.CMDP(np.ones((1, 2, 1)), reward=[[0.0, reward]], constraints=constraints, gamma=0.5)
        view = ExactLearner(cmdp, ck.TabularPolicy.uniform(1, 2)).look()
        assert view.multiplier_bound() == pytest.approx(cap, rel=1e-6)


def test_crpo_first_steps_by_hand():
    # V₁(π₀) = 1 > 0: a step on c, log-odds −0.25·2 = −0.5, V_c = 4·logistic(−0.5) = 1.51 > 1: again on c.
    # log-odds −1: V_c = 1.08: again. −1.5: V_c = 0.73 ≤ 1: now on the reward, back to −1.5 + 0.25·2 = −1.
    result = run(one_state(), "crpo", 4, step=0.25)
    expected = 4.0 * logistic(np.array([-0.5, -1.0, -1.5, -1.0]))
    np.testing.assert_allclose(result.history.constraint_values[:, 0], expected, rtol=1e-13)


def test_npg_first_step_by_hand():
    plain = ck.CMDP(np.ones((1, 2, 1)), cost=[[1.0, 3.0]], gamma=0.5)
    result = run(plain, "npg", 1, step=0.25)
    p = logistic(-0.25 * 2.0)
    assert result.history.objective[0] == pytest.approx(2.0 * (1.0 + 2.0 * p), rel=1e-14)


def algorithm_1(cmdp, step, eta_dual, inner_steps, alpha, K):
    """Algorithm 1 in probabilities and the user's own numbers, with eq. npg-entropy as printed. Yields π_k, V, λ."""
    S, A, gamma = cmdp.states, cmdp.actions, cmdp.gamma
    P = np.asarray(cmdp.transitions).reshape(S, A, S)
    c0 = (-1.0 if cmdp.maximise else 1.0) * cmdp.objective
    costs, limits = [], []
    for c in cmdp.constraints:
        sign, unit = (-1.0 if isinstance(c, ck.AtLeast) else 1.0), (1.0 - gamma if c.per_step else 1.0)
        # V_i = value − limit exactly when the limit is spread over all steps
        costs.append(sign * (unit * np.asarray(c.values) - (1.0 - gamma) * c.limit))
        limits.append(c.limit)

    def values(pi, cost):
        chain = np.einsum("sa,sat->st", pi, P)
        return np.linalg.solve(np.eye(S) - gamma * chain, (pi * cost).sum(1))

    def constraint_values(pi):
        return np.array([cmdp.initial @ values(pi, c) for c in costs])

    pi = np.full((S, A), 1.0 / A)
    v = constraint_values(pi)
    lam = np.maximum(0.0, -eta_dual * v)
    eta = step * (1.0 - gamma)
    for _ in range(K):
        anchor = pi
        mixed = c0 + sum((lam[i] + eta_dual * v[i]) * c for i, c in enumerate(costs))
        for _ in range(inner_steps):
            regularised = values(pi, mixed + alpha * np.log(pi / anchor))
            q = mixed + alpha * np.log(1.0 / anchor) + gamma * P @ regularised
            pi = pi ** (1.0 - eta * alpha / (1.0 - gamma)) * np.exp(-eta * q / (1.0 - gamma))
            pi /= pi.sum(1, keepdims=True)
        v = constraint_values(pi)
        lam = np.maximum(-eta_dual * v, lam + eta_dual * v)
        yield pi, v, lam


def reward(cmdp, pi):
    """V_r of a policy, by a power series: no solver of the package, nor any linear system."""
    P = np.asarray(cmdp.transitions).reshape(cmdp.states, cmdp.actions, cmdp.states)
    chain, here, total, discount = np.einsum("sa,sat->st", pi, P), cmdp.initial, 0.0, 1.0
    while discount > 1e-16:
        total += discount * here @ (pi * cmdp.objective).sum(axis=1)
        here, discount = here @ chain, discount * cmdp.gamma
    return total


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("inner_steps", "alpha"), [(1, 0.7), (4, 0.7), (3, 2.0)])
def test_algorithm_1_in_the_users_units(seed, inner_steps, alpha):
    """Internal conventions must not show: the iterates are those of a loop on the user's numbers."""
    cmdp = random_model(seed, constraints=1 + seed % 3, sparse=False, gamma=0.8)
    # an option is in the user's units as well: choose steps that keep the reference loop within floating-point range
    step, eta_dual = 0.4, 0.02
    result = run(cmdp, "pmd-pd", 6, step=step, eta_dual=eta_dual, inner_steps=inner_steps, alpha=alpha)
    assert list(result.history.inner_steps) == [inner_steps] * 6
    reference = list(algorithm_1(cmdp, step, eta_dual, inner_steps, alpha, 6))
    for k, (_, v, lam) in enumerate(reference):
        signs = np.array([-1.0 if isinstance(c, ck.AtLeast) else 1.0 for c in cmdp.constraints])
        limits = np.array([c.limit for c in cmdp.constraints])
        np.testing.assert_allclose(result.history.constraint_values[k], signs * v + limits, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(result.history.multipliers[k], lam, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(result.last_policy.probabilities, reference[-1][0], rtol=1e-7, atol=1e-12)


def test_facts_of_the_papers_instance(paper):
    """The figures that the documents quote, from an independent LP and an independent Algorithm 1."""
    optimum, _ = lp_optimum(paper)
    assert optimum == pytest.approx(4.462443636256558, abs=1e-9)
    result = run(paper, "pmd-pd", 300, step=1.0, eta_dual=1.0)
    history = result.history
    assert len(history) == result.iterations == 300
    iterates = list(algorithm_1(paper, 1.0, 1.0, 1, 0.0, 300))
    gaps = np.array([optimum - reward(paper, pi) for pi, _, _ in iterates])
    violations = np.array([v[0] for _, v, _ in iterates])
    np.testing.assert_allclose(optimum - history.objective, gaps, atol=1e-9)
    np.testing.assert_allclose(3.0 - history.constraint_values[:, 0], violations, atol=1e-9)
    np.testing.assert_allclose(history.multipliers[:, 0], [lam[0] for _, _, lam in iterates], atol=1e-9)
    assert optimum - history.average_objective[-1] == pytest.approx(gaps.mean(), abs=1e-9)
    assert 3.0 - history.average_constraint_values[-1, 0] == pytest.approx(violations.mean(), abs=1e-9)
    # as printed in the documents
    assert gaps.mean() == pytest.approx(0.0332501, abs=5e-8)
    assert violations.mean() == pytest.approx(0.000364868, abs=5e-10)


def test_last_iterate_converges_linearly(paper):
    history = run(paper, "pmd-pd", 3000, step=1.0, eta_dual=1.0).history
    gap = np.abs(4.462443636256558 - history.objective)
    assert gap[2999] == pytest.approx(7e-9, rel=0.2)
    # the same factor every thousand steps once the transient is over, where 1/k would give 2 and 1.5
    assert gap[999] / gap[1999] > 20.0
    assert gap[1999] / gap[2999] > 20.0


def test_alpha_cancels_with_one_inner_step(paper):
    plain, anchored = (run(paper, "pmd-pd", 20, step=1.0, eta_dual=1.0, alpha=a).history for a in (0.0, 5.0))
    np.testing.assert_array_equal(plain.objective, anchored.objective)
    three = run(paper, "pmd-pd", 20, step=0.1, eta_dual=1.0, alpha=5.0, inner_steps=3).history
    other = run(paper, "pmd-pd", 20, step=0.1, eta_dual=1.0, alpha=0.0, inner_steps=3).history
    assert np.abs(three.objective - other.objective).max() > 1e-3


@pytest.mark.parametrize("method", ["pmd-pd", "npg-pd", "crpo"])
@pytest.mark.parametrize("seed", [1, 2, 5])
def test_average_policy_has_the_average_values(method, seed):
    cmdp = random_model(seed, constraints=2, gamma=0.8)  # with gamma 0 any average would do
    result = run(cmdp, method, 37)
    average = ck.evaluate(cmdp, result.average_policy)
    assert average.objective == pytest.approx(result.history.average_objective[-1], rel=1e-9, abs=1e-9)
    np.testing.assert_allclose(
        average.constraint_values, result.history.average_constraint_values[-1], rtol=1e-9, atol=1e-9
    )
    last = ck.evaluate(cmdp, result.last_policy)
    assert last.objective == pytest.approx(result.history.objective[-1], rel=1e-9, abs=1e-9)
    # Rows of the average are those of the average occupancy: averaging probabilities would be wrong, and visibly so
    first, both = (run(cmdp, method, k) for k in (1, 2))
    tables = [first.last_policy.probabilities, both.last_policy.probabilities]
    occupancy = sum(ck.evaluate(cmdp, table).occupancy for table in tables)
    expected = occupancy / occupancy.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(both.average_policy.probabilities, expected, atol=1e-9)
    assert np.abs(expected - 0.5 * (tables[0] + tables[1])).max() > 1e-6


def test_averaging_probabilities_is_something_else(paper):
    result = run(paper, "pmd-pd", 2, step=3.0, eta_dual=1.0)
    first = run(paper, "pmd-pd", 1, step=3.0, eta_dual=1.0).last_policy.probabilities
    naive = ck.evaluate(paper, 0.5 * (first + result.last_policy.probabilities)).objective
    exact = ck.evaluate(paper, result.average_policy).objective
    assert exact == pytest.approx(result.history.objective.mean(), rel=1e-12)
    assert abs(naive - exact) > 1e-6


def test_inner_loop_contracts_at_its_rate(paper):
    """‖Q̃* − Q̃^(t)‖ shrinks by (1 − ηα) a step (Lemma cen), monotonically, towards the regularised optimum."""
    step, alpha = 0.5, 1.5  # ηα = step·(1 − γ)·α = 0.15
    weights = Weights(1.0, np.array([0.4]))

    def after(t):
        learner = ExactLearner(paper, ck.TabularPolicy.uniform(20, 10), step=step, inner_steps=t, alpha=alpha)
        learner.improve(weights)
        return learner.policy.log_probabilities

    optimum = after(400)
    distances = np.array([np.abs(after(t) - optimum).max() for t in range(1, 18)])
    assert (np.diff(distances) < 0.0).all()
    rate = 1.0 - step * (1.0 - paper.gamma) * alpha
    # log π^(t) is within 2 C α⁻¹ rate^t of the optimum: with C fitted at the first step it holds ever after
    assert (distances <= distances[0] * rate ** np.arange(17)).all()
    # the optimum is the fixed point π ∝ π_k exp(−Q̃/α) of soft policy iteration, computed independently
    cost = -paper.objective - 0.4 * np.asarray(paper.constraints[0].values)
    P = np.asarray(paper.transitions).reshape(20, 10, 20)
    value = np.zeros(20)
    for _ in range(500):
        q = cost + paper.gamma * P @ value
        value = -alpha * np.log(np.exp(-q / alpha).mean(axis=1))
    soft = -q / alpha
    soft -= np.log(np.exp(soft).sum(1, keepdims=True))
    np.testing.assert_allclose(optimum, soft, atol=1e-10)


def test_invariants_of_lemma_1_along_a_run(paper):
    eta_dual = 0.7
    result = run(paper, "pmd-pd", 200, step=2.0, eta_dual=eta_dual)
    v = 3.0 - result.history.constraint_values
    lam = result.history.multipliers
    assert (lam >= 0.0).all()
    assert (lam + eta_dual * v >= -1e-15).all()
    assert (np.abs(lam) >= np.abs(eta_dual * v) - 1e-15).all()


def test_start_options(paper):
    rng = np.random.default_rng(0)
    start = rng.dirichlet(np.ones(10), size=20)
    result = run(paper, "pmd-pd", 1, step=1.0, eta_dual=1.0, initial_policy=start, initial_multipliers=[0.5])
    learner = ExactLearner(paper, ck.TabularPolicy(start), step=1.0)
    rule = PMDPD(1.0)
    state = rule.start(learner.look())._replace(multipliers=np.array([0.5]))
    iterate = next(primal_dual(learner, rule, state))
    assert result.history.multipliers[0, 0] == iterate.multipliers[0]
    v_0 = 3.0 - ck.evaluate(paper, start).constraint_values[0]
    assert iterate.weights.constraints[0] == pytest.approx(0.5 + v_0, rel=1e-12)


def test_zero_iterations_return_the_start(paper):
    result = run(paper, "pmd-pd", 0)
    assert result.status is ck.Status.ITERATION_LIMIT
    assert len(result.history) == 0
    np.testing.assert_allclose(result.policy.probabilities, 0.1)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_default_steps_do_not_depend_on_units(paper, factor):
    """The same model in other units takes the same path."""
    reward, utility = paper.objective, np.asarray(paper.constraints[0].values)
    P = np.asarray(paper.transitions).reshape(20, 10, 20)
    scaled = ck.CMDP(P, reward=factor * reward, constraints=[ck.AtLeast(utility / factor, 3.0 / factor)], gamma=0.8)
    one, other = (run(model, "pmd-pd", 60).history for model in (paper, scaled))
    np.testing.assert_allclose(other.objective / factor, one.objective, rtol=1e-6)
    np.testing.assert_allclose(other.multipliers / factor**2, one.multipliers, rtol=1e-5, atol=1e-9)


def test_closed_form_two_states():
    gamma, limit = 0.9, 2.0
    cmdp = two_state(gamma, limit)
    result = ck.solve(cmdp, "pmd-pd")
    assert result.status is ck.Status.OPTIMAL
    assert result.objective == pytest.approx(1.0 / (1.0 - gamma) + (1.0 - gamma) * limit, abs=2e-5)
    assert result.multipliers[0] == pytest.approx(1.0 - gamma, abs=1e-4)
    risk = limit * (1.0 - gamma) / (1.0 - limit * gamma * (1.0 - gamma))
    assert result.policy.probabilities[0, 1] == pytest.approx(risk, abs=1e-4)


@pytest.mark.parametrize("name", ["paper", "garnet", "two_queues", "wireless", "grid", "maintenance", "inventory"])
def test_pmdpd_at_its_defaults_proves_every_problem(name):
    cmdp = ck.problems.CATALOGUE[name]()
    result = ck.solve(cmdp, "pmd-pd", max_iterations=1000)
    assert result.status is ck.Status.OPTIMAL
    optimum, _ = lp_optimum(cmdp)
    assert result.objective == pytest.approx(optimum, rel=3e-6, abs=3e-6)


def test_infeasible_models_are_refuted():
    result = ck.solve(random_model(3, constraints=1, feasible=False), "pmd-pd")
    assert result.status is ck.Status.INFEASIBLE
    assert result.certificate.infeasibility_margin > 0.0


@pytest.mark.parametrize("seed", range(6))
def test_limits_far_below_the_possible_are_refuted_early(seed):
    """Prices run away then: Σ λ_i V_i exceeds what objectives can differ by after a few steps."""
    cmdp = random_model(seed, constraints=2, feasible=False)
    result = ck.solve(cmdp, "pmd-pd")
    assert result.status is ck.Status.INFEASIBLE
    assert result.iterations <= 10
    assert ck.solve(cmdp, "lp").status is ck.Status.INFEASIBLE


def test_the_first_evaluations_of_growing_steps_are_rough(monkeypatch):
    """Nothing is known of the distance yet; fixed steps are evaluated as exactly as rounding allows."""
    asked, plain = [], PolicySystem.state_occupancy

    def occupancy(self, guess=None, accuracy=0.0):
        asked.append(accuracy)
        return plain(self, guess, accuracy)

    monkeypatch.setattr(PolicySystem, "state_occupancy", occupancy)
    cmdp = ck.problems.garnet(states=300, actions=3, constraints=2, seed=4)
    assert ck.solve(cmdp, "pmd-pd").status is ck.Status.OPTIMAL
    assert asked[:2] == [ROUGHEST, ROUGHEST]
    assert max(asked[-3:]) < 1e-6
    asked.clear()
    ck.solve(cmdp, "pmd-pd", steps="fixed", max_iterations=2)
    assert set(asked) == {0.0}
