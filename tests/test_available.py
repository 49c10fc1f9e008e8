"""Actions that are not available everywhere: never played, never priced, and only what exists is stored."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linprog

import cmdpkit as ck
from cmdpkit.evaluation import backup
from cmdpkit.model import Pairs
from cmdpkit.simulators import ModelSimulator

GAMMA = 0.9
EXACT = ("auto", "columns", "pmd-pd", "lp")


class Case:
    """A random model with missing actions, given in every form, and its LP over the pairs that exist."""

    def __init__(self, seed, states=6, actions=4, constraints=2, share=0.5, tightness=0.47):
        rng = np.random.default_rng(seed)
        self.mask = rng.random((states, actions)) < share
        self.mask[np.arange(states), rng.integers(actions, size=states)] = True
        P = rng.random((states, actions, states)) * (rng.random((states, actions, states)) < 0.6) + 1e-3
        self.P = P / P.sum(axis=2, keepdims=True)
        self.reward = rng.random((states, actions))
        self.costs = rng.random((constraints, states, actions))
        self.limits = (tightness + 0.1 * rng.random(constraints)) / (1.0 - GAMMA)
        # What stands at a missing pair must not matter
        self.reward[~self.mask], self.P[~self.mask], self.costs[:, ~self.mask] = 1e9, np.nan, np.nan

    @property
    def rows(self):
        return np.flatnonzero(self.mask)

    def model(self, form="mask"):
        flat = np.nan_to_num(self.P).reshape(self.mask.size, -1)
        values = [self.reward, *self.costs]
        transitions, available = self.P, self.mask
        if form == "sparse":
            transitions = sp.csr_array(flat)
        if form == "rows":
            transitions, available = sp.csr_array(flat[self.rows]), sp.csr_array(self.mask)
            values = [table.ravel()[self.rows] for table in values]
        if form == "dense rows":
            transitions = flat[self.rows]
        reward, *costs = values
        limits = [ck.AtMost(c, limit) for c, limit in zip(costs, self.limits, strict=True)]
        return ck.CMDP(transitions, reward=reward, constraints=limits, gamma=GAMMA, available=available)

    def padded(self):
        """The same decisions without a mask: every missing action does what an available one does."""
        S, A = self.mask.shape
        column = np.where(self.mask, np.arange(A), self.mask.argmax(axis=1)[:, None])
        pick = (np.arange(S)[:, None], column)
        limits = [ck.AtMost(c[pick], limit) for c, limit in zip(self.costs, self.limits, strict=True)]
        return ck.CMDP(self.P[pick], reward=self.reward[pick], constraints=limits, gamma=GAMMA)

    def optimum(self):
        S, A = self.mask.shape
        leave = np.eye(S)[self.rows // A].T
        balance = leave - GAMMA * self.P.reshape(S * A, S)[self.rows].T
        rows = self.costs.reshape(-1, S * A)[:, self.rows]
        answer = linprog(-self.reward.ravel()[self.rows], rows, self.limits, balance, np.full(S, 1.0 / S))
        return -answer.fun if answer.status == 0 else None


CASES = [Case(seed, tightness=0.47 if seed % 4 else 0.3) for seed in range(12)]


@pytest.mark.parametrize("form", ["mask", "sparse", "rows", "dense rows"])
def test_all_forms_are_the_same_model(form):
    case = CASES[0]
    one, other = case.model(), case.model(form)
    assert one.pairs.same(other.pairs)
    assert other.pairs.count == case.mask.sum()
    dense = other.transitions.toarray() if sp.issparse(other.transitions) else other.transitions
    np.testing.assert_array_equal(dense, one.transitions)
    np.testing.assert_array_equal(other.costs, one.costs)
    np.testing.assert_array_equal(other.pairs.mask, case.mask)


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("seed", range(12))
def test_every_method_finds_the_optimum_over_the_available_pairs(seed, method):
    case = CASES[seed]
    result = ck.solve(case.model(("mask", "sparse", "rows")[seed % 3]), method)
    assert (result.policy.probabilities[~case.mask] == 0.0).all()
    truth = case.optimum()
    if truth is None:
        assert result.status is ck.Status.INFEASIBLE
    else:
        assert result.status is ck.Status.OPTIMAL
        assert result.objective == pytest.approx(truth, rel=3e-6)


def test_the_cases_have_both_answers():
    assert 0 < sum(case.optimum() is None for case in CASES) < len(CASES)


@pytest.mark.parametrize("method", ["npg-pd", "crpo", "pmd-pd-zero", "pid-lagrangian", "augmented-lagrangian"])
def test_first_order_methods_never_play_a_missing_action(method):
    case = next(case for case in CASES if case.optimum() is not None)
    result = ck.solve(case.model(), method, max_iterations=50)
    for policy in (result.policy, result.last_policy, result.average_policy):
        assert policy is None or (policy.probabilities[~case.mask] == 0.0).all()


@pytest.mark.parametrize("method", ["npg", "pg", "npg-entropy", "pg-entropy"])
def test_methods_for_models_without_constraints(method):
    case = Case(3, constraints=0)
    result = ck.solve(case.model(), method, max_iterations=200)
    assert (result.policy.probabilities[~case.mask] == 0.0).all()
    if method == "npg":
        assert result.objective == pytest.approx(case.optimum(), rel=1e-6)


def test_penalties_are_not_needed_and_infeasible_models_are_refuted():
    """A state whose only cheap action is missing: with a penalty of 1e6 a policy could still play it a little."""
    mask = np.array([[True, False], [True, True]])
    P = np.array([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
    cost = np.array([[1.0, 0.0], [0.0, 0.0]])
    # The action of state 0 costs 1 every time it is visited, and the start is there
    model = ck.CMDP(P, reward=np.ones((2, 2)), constraints=[ck.AtMost(cost, 0.5)], gamma=0.9, initial=0, available=mask)
    for method in EXACT:
        result = ck.solve(model, method)
        assert result.status is ck.Status.INFEASIBLE
        assert result.certificate.infeasibility_margin == pytest.approx(0.5)
        assert result.policy.probabilities[0, 1] == 0.0


@pytest.mark.parametrize("seed", range(6))
def test_evaluation_and_certificates_agree_with_the_padded_model(seed):
    case = CASES[seed]
    model, padded = case.model("sparse"), case.padded()
    rng = np.random.default_rng(seed)
    policy = np.where(case.mask, rng.random(case.mask.shape), 0.0)
    policy /= policy.sum(axis=1, keepdims=True)
    mine, theirs = ck.evaluate(model, policy), ck.evaluate(padded, policy)
    assert mine.objective == pytest.approx(theirs.objective, rel=1e-12)
    np.testing.assert_allclose(mine.constraint_values, theirs.constraint_values, rtol=1e-12)
    np.testing.assert_allclose(mine.state_values, theirs.state_values, rtol=1e-12)
    np.testing.assert_allclose(mine.occupancy, theirs.occupancy, rtol=1e-12)
    assert np.isnan(mine.action_values[:, ~case.mask]).all()
    np.testing.assert_allclose(mine.action_values[:, case.mask], theirs.action_values[:, case.mask], rtol=1e-12)
    one, other = ck.certify(model, policy), ck.certify(padded, policy)
    assert one.bound == pytest.approx(other.bound, rel=1e-8)
    assert one.violation == pytest.approx(other.violation, rel=1e-9)
    assert ck.slater_margin(model) == pytest.approx(ck.slater_margin(padded), abs=1e-7)


@pytest.mark.parametrize("compiled", [False, True])
def test_compiled_and_plain_kernels_agree(compiled, monkeypatch):
    case = Case(5, states=40, actions=7, constraints=4, share=0.3)
    model, padded = case.model("sparse"), case.padded()
    monkeypatch.setattr(backup, "COMPILED", 0 if compiled else 10**9)
    rng = np.random.default_rng(0)
    values, weights, visits = rng.random((40, 5)), rng.random(5), rng.random(40)
    pairs = model.pairs
    one = backup.bellman(model, weights @ model.costs, values[:, 0], np.zeros(40, dtype=np.int32))
    other = backup.bellman(padded, weights @ padded.costs, values[:, 0], np.zeros(40, dtype=np.int32))
    np.testing.assert_allclose(one.values, other.values, rtol=1e-13)
    chosen = pairs.action[pairs.rows(one.choice)]
    q = (weights @ model.costs + GAMMA * (model.transitions @ values[:, 0]))[pairs.rows(one.choice)]
    np.testing.assert_allclose(q, one.values, rtol=1e-13)
    assert case.mask[np.arange(40), chosen].all()
    table = backup.advantages(model, values)
    expected = model.costs.T + GAMMA * (model.transitions @ values) - values[pairs.state]
    np.testing.assert_allclose(table, expected, atol=1e-12)
    choice, total = backup.greedy(pairs, table, weights, visits, compiled)
    scores = np.where(case.mask, pairs.table(expected @ weights, np.inf), np.inf)
    np.testing.assert_array_equal(pairs.action[pairs.rows(choice)], scores.argmin(axis=1))
    np.testing.assert_allclose(total, visits @ expected[pairs.rows(choice)], rtol=1e-12)


def test_a_large_sparse_model_with_compiled_kernels(monkeypatch):
    case = Case(8, states=60, actions=6, constraints=2, share=0.3)
    monkeypatch.setattr(backup, "COMPILED", 0)
    for method in ("auto", "pmd-pd"):
        result = ck.solve(case.model("rows"), method)
        assert result.status is ck.Status.OPTIMAL
        assert result.objective == pytest.approx(case.optimum(), rel=3e-6)


# -- simulation and learning ------------------------------------------------------------------------------------------


def forbidding(case):
    """A simulator that fails when it is asked for a missing action."""
    S, A = case.mask.shape
    P = np.nan_to_num(case.P).reshape(S * A, S)

    def step(states, actions, rng):
        assert case.mask[states, actions].all()
        rows = states * A + actions
        following = (np.cumsum(P[rows], axis=1) < rng.random((states.size, 1))).sum(axis=1)
        return np.minimum(following, S - 1), np.stack([t.ravel()[rows] for t in (case.reward, *case.costs)])

    return ck.Simulator(
        step,
        lambda n, rng: rng.integers(S, size=n),
        states=S,
        actions=A,
        gamma=GAMMA,
        constraints=[ck.AtMost(None, limit) for limit in case.limits],
        bounds=[(0.0, 1.0)] * 3,
        available=case.mask,
    )


@pytest.mark.parametrize("estimator", ["truncated", "geometric", "pooled"])
def test_learners_ask_simulators_for_available_actions_only(estimator):
    case = next(case for case in CASES if case.optimum() is not None)
    for simulator in (forbidding(case), ModelSimulator(case.model("sparse"))):
        result = ck.solve(simulator, sampling=ck.Sampling(estimator=estimator, rollouts=20), max_iterations=3)
        for policy in (*result.average_policy.policies, result.last_policy):
            assert (policy.probabilities[~case.mask] == 0.0).all()


def test_returns_of_rollouts_are_those_of_the_exact_values():
    case = CASES[1]
    model = case.model("sparse")
    rng = np.random.default_rng(0)
    policy = np.where(case.mask, rng.random(case.mask.shape), 0.0)
    policy = ck.TabularPolicy(policy / policy.sum(axis=1, keepdims=True))
    exact = ck.evaluate(model, policy)
    for simulator in (model, forbidding(case)):
        found = ck.certify_by_simulation(simulator, policy, rollouts=3000, seed=1)
        assert found.objective == pytest.approx(exact.objective, rel=0.05)
        np.testing.assert_allclose(found.constraint_values, exact.constraint_values, rtol=0.05)


def test_sampling_an_action():
    case = CASES[2]
    policy = ck.solve(case.model()).policy
    rng = np.random.default_rng(0)
    for state in range(policy.states):
        drawn = [policy.sample(state, rng) for _ in range(50)]
        assert case.mask[state, drawn].all()


# -- files and copies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["mask", "sparse"])
def test_files_keep_pairs_and_names(form, tmp_path):
    case = CASES[0]
    plain = case.model(form)
    names = [("depot", i) for i in range(6)], ["go", "stay", "wait", "turn"]
    model = ck.CMDP(
        plain.transitions,
        reward=plain.objective,
        constraints=plain.constraints,
        gamma=GAMMA,
        available=case.mask,
        state_labels=names[0],
        action_labels=names[1],
        initial=("depot", 3),
    )
    model.save(tmp_path / "m.npz")
    loaded = ck.CMDP.load(tmp_path / "m.npz")
    assert loaded.pairs.same(model.pairs)
    assert (loaded.state_labels, loaded.action_labels) == (tuple(names[0]), tuple(names[1]))
    np.testing.assert_array_equal(loaded.costs, model.costs)
    np.testing.assert_array_equal(loaded.initial, np.eye(6)[3])
    result = ck.solve(loaded)
    result.policy.save(tmp_path / "p.npz")
    policy = ck.TabularPolicy.load(tmp_path / "p.npz")
    assert policy.pairs.same(model.pairs)
    assert policy.pairs.state_labels == tuple(names[0])
    np.testing.assert_array_equal(policy.log_pi, result.policy.log_pi)
    result.save(tmp_path / "r.npz")
    np.testing.assert_array_equal(ck.Result.load(tmp_path / "r.npz").policy.log_pi, result.policy.log_pi)
    mixture = ck.MixturePolicy([result.policy, policy], [0.25, 0.75])
    mixture.save(tmp_path / "x.npz")
    again = ck.MixturePolicy.load(tmp_path / "x.npz")
    assert again.policies[1].pairs.same(model.pairs)
    np.testing.assert_array_equal(again.weights, [0.25, 0.75])
    assert ck.certify(model, again).violation <= 1e-6


def test_a_model_without_missing_actions_is_stored_as_before(tmp_path):
    full = ck.CMDP(np.ones((1, 2, 1)), reward=[[0.0, 1.0]], gamma=0.5, available=np.ones((1, 2), dtype=bool))
    assert full.pairs.is_full
    full.save(tmp_path / "m.npz")
    assert int(np.load(tmp_path / "m.npz")["version"]) == 1


# -- memory follows the pairs -----------------------------------------------------------------------------------------


def test_arrays_have_the_size_of_the_pairs():
    """One choice in most states and fifty in some: nothing of size states times actions is kept."""
    states, many = 5_000, 50
    counts = np.where(np.arange(states) % 100 == 0, many, 1)
    first = np.append(0, np.cumsum(counts))
    rng = np.random.default_rng(0)
    rows = sp.csr_array(
        (np.ones(first[-1]), rng.integers(states, size=first[-1]), np.arange(first[-1] + 1)),
        shape=(first[-1], states),
    )
    action = np.concatenate([np.arange(n) for n in counts])
    available = sp.csr_array((np.ones(first[-1], dtype=bool), action, first), shape=(states, many))
    cost = rng.random(first[-1])
    model = ck.CMDP(
        rows, cost=rng.random(first[-1]), constraints=[ck.AtMost(cost, 5.1)], gamma=0.9, available=available
    )
    result = ck.solve(model)
    assert result.status is ck.Status.OPTIMAL
    assert model.costs.shape == (2, first[-1])
    for policy in (result.policy, result.last_policy):
        assert policy is None or policy.log_pi.size == first[-1]
    assert ck.evaluate(model, result.policy).pair_values.shape == (2, first[-1])


# -- rewards of other shapes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["dense", "sparse", "masked"])
def test_rewards_of_every_shape(form):
    rng = np.random.default_rng(4)
    P = rng.random((5, 3, 5)) * (rng.random((5, 3, 5)) < 0.5) + 1e-3
    P /= P.sum(axis=2, keepdims=True)
    by_state, by_move = rng.random(5), rng.random((5, 3, 5))
    mask = rng.random((5, 3)) < 0.6
    mask[:, 0] = True
    settings = {"gamma": 0.9, "available": mask if form == "masked" else None}
    transitions = sp.csr_array(P.reshape(15, 5)) if form == "sparse" else P
    for given, expected in ((by_state, np.repeat(by_state[:, None], 3, axis=1)), (by_move, (P * by_move).sum(axis=2))):
        model = ck.CMDP(transitions, reward=given, constraints=[ck.AtMost(given, 9.0)], **settings)
        truth = expected[mask] if form == "masked" else expected
        np.testing.assert_allclose(model.objective, truth, rtol=1e-14)
        np.testing.assert_allclose(model.costs[1], truth.ravel(), rtol=1e-14)


# -- refusals ---------------------------------------------------------------------------------------------------------

P = np.full((3, 2, 3), 1.0 / 3.0)
R = np.ones((3, 2))
MASK = np.array([[True, True], [True, False], [False, True]])

REFUSALS = {
    "shape": ({"available": MASK.T}, ValueError, r"available has shape \(2, 3\).*must have shape \(3, 2\)"),
    "numbers": ({"available": MASK.astype(int)}, TypeError, r"True and False, not int64; use available.astype"),
    "none left": ({"available": MASK & False}, ValueError, r"state 0 has no available action \(3 such states\)"),
    "twice": (
        {"available": sp.coo_array((np.ones(5), ([0, 0, 1, 2, 2], [0, 1, 0, 1, 1])), shape=(3, 2))},
        ValueError,
        "available has an entry twice",
    ),
    "rows": (
        {"available": MASK, "transitions": sp.csr_array(np.full((5, 3), 1.0 / 3.0))},
        ValueError,
        "have 5 rows, but 4 of the 6 pairs",
    ),
    "reward": ({"available": MASK, "reward": np.ones(5)}, ValueError, r"reward has shape \(5,\).*or \(4,\) for the av"),
    "nan": (
        {"available": MASK, "reward": [1.0, 1.0, np.nan, 1.0]},
        ValueError,
        "reward of state 1, action 0 is nan",
    ),
    "row sum": ({"available": MASK, "transitions": 0.5 * P}, ValueError, "of state 0, action 0 sum to 0.5"),
    "masked array": ({"reward": np.ma.masked_array(R, ~MASK)}, TypeError, "available=~mask"),
    "too few labels": ({"state_labels": ["a", "b"]}, ValueError, "2 state_labels, but 3 states"),
    "labels twice": ({"action_labels": ["a", "a"]}, ValueError, "'a' is used more than once"),
    "label is a list": ({"action_labels": [["a"], "b"]}, TypeError, "not hashable"),
    "labels are a string": ({"action_labels": "ab"}, TypeError, "one label per action"),
    "unknown start": (
        {"state_labels": ["x", "y", "z"], "initial": "w"},
        ValueError,
        "no state 'w'; the states are 'x'",
    ),
    "named row": (
        {"state_labels": ["x", "y", "z"], "action_labels": ["go", "stay"], "transitions": 0.5 * P},
        ValueError,
        "of state 'x', action 'go' sum to 0.5",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_say_what_and_where(case):
    changes, error, text = REFUSALS[case]
    arguments = {"transitions": P, "reward": R, "gamma": 0.9} | changes
    with pytest.raises(error, match=text):
        ck.CMDP(arguments.pop("transitions"), **arguments)


def test_a_policy_that_takes_a_missing_action_is_refused_by_name():
    model = ck.CMDP(P, reward=R, gamma=0.9, available=MASK, state_labels=["x", "y", "z"], action_labels=["go", "stay"])
    uniform = ck.TabularPolicy.uniform(3, 2)
    for call in (
        lambda: ck.evaluate(model, uniform),
        lambda: ck.certify(model, uniform),
        lambda: ck.certify_by_simulation(model, ck.MixturePolicy([uniform])),
        lambda: ck.solve(model, "pmd-pd", initial_policy=uniform),
    ):
        with pytest.raises(ValueError, match=r"takes action 'stay' in state 'y' with probability 0.5.*2 such pairs"):
            call()


def test_labels_that_no_file_can_hold_are_refused_on_saving(tmp_path):
    model = ck.CMDP(P, reward=R, gamma=0.9, state_labels=[frozenset([i]) for i in range(3)])
    with pytest.raises(ValueError, match=r"frozenset.*files take strings, numbers and tuples"):
        model.save(tmp_path / "m.npz")
    assert not (tmp_path / "m.npz").exists()


def test_a_start_by_label_or_by_distribution():
    settings = {"reward": R, "gamma": 0.9, "state_labels": ["x", "y", (2, "z")]}
    np.testing.assert_array_equal(ck.CMDP(P, initial="y", **settings).initial, [0.0, 1.0, 0.0])
    np.testing.assert_array_equal(ck.CMDP(P, initial=(2, "z"), **settings).initial, [0.0, 0.0, 1.0])
    np.testing.assert_array_equal(ck.CMDP(P, initial={"x": 0.25, "y": 0.75}, **settings).initial, [0.25, 0.75, 0.0])
    np.testing.assert_array_equal(ck.CMDP(P, initial=1, **settings).initial, [0.0, 1.0, 0.0])


# -- pairs ------------------------------------------------------------------------------------------------------------


def test_arithmetic_over_the_actions_of_a_state():
    pairs = Pairs(3, 4, np.array([0, 2, 3, 6]), np.array([1, 3, 0, 0, 2, 3]))
    x = np.array([3.0, 1.0, 5.0, 2.0, 2.0, 9.0])
    np.testing.assert_array_equal(pairs.sum(x), [4.0, 5.0, 13.0])
    np.testing.assert_array_equal(pairs.max(x), [3.0, 5.0, 9.0])
    np.testing.assert_array_equal(pairs.min(x), [1.0, 5.0, 2.0])
    np.testing.assert_array_equal(pairs.argmin(x), [1, 0, 0])
    np.testing.assert_array_equal(pairs.over(np.array([7.0, 8.0, 9.0])), [7, 7, 8, 9, 9, 9])
    np.testing.assert_array_equal(pairs.uniform(), [0.5, 0.5, 1.0, 1 / 3, 1 / 3, 1 / 3])
    np.testing.assert_array_equal(pairs.one_hot(np.array([1, 0, 2])), [0, 1, 1, 0, 0, 1])
    np.testing.assert_array_equal(pairs.table(x, -1.0), [[-1, 3, -1, 1], [5, -1, -1, -1], [2, -1, 2, 9]])
    np.testing.assert_array_equal(pairs.taken(pairs.table(x, -1.0)), x)
    np.testing.assert_array_equal(pairs.find([0, 2, 2], [3, 0, 3]), [1, 3, 5])
    assert pairs.pair_name(4) == "state 2, action 2"
    assert pairs.largest == 3
    states, actions = pairs.of(np.arange(6))
    np.testing.assert_array_equal(states, [0, 0, 1, 2, 2, 2])
    np.testing.assert_array_equal(actions, [1, 3, 0, 0, 2, 3])


def test_an_initial_state_is_read_as_a_label_where_labels_are_numbers():
    def model(labels, initial):
        return ck.CMDP(np.ones((2, 1, 2)) / 2, reward=[[0.0], [1.0]], gamma=0.5, initial=initial, state_labels=labels)

    np.testing.assert_array_equal(model([1, 0], 0).initial, [0.0, 1.0])
    np.testing.assert_array_equal(model(["a", "b"], 1).initial, [0.0, 1.0])
    np.testing.assert_array_equal(model([None, "b"], None).initial, [0.5, 0.5])  # the default, not the label
    with pytest.raises(ValueError, match="there is no state 1; the states are 10, 20"):
        model([10, 20], 1)
