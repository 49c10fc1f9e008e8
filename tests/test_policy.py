"""Policies: probabilities and their logarithms, sampling, files, and every refusal."""

from __future__ import annotations

import io
import math
import os
import re
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import logsumexp
from scipy.stats import chi2

import cmdpkit as ck
from cmdpkit.model import Pairs

PI = np.array([[0.25, 0.75, 0.0], [0.0, 0.0, 1.0], [0.125, 0.375, 0.5], [1.0, 0.0, 0.0]])

tables = arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 5)), elements=st.floats(-1e6, 1e6))


# -- construction ----------------------------------------------------------------------------------------------------


def test_probabilities_are_kept_and_their_logarithms_taken():
    policy = ck.TabularPolicy(PI)
    assert (policy.states, policy.actions) == (4, 3)
    np.testing.assert_array_equal(policy.probabilities, PI)
    np.testing.assert_allclose(
        policy.log_probabilities[2], [-3 * math.log(2), math.log(0.375), -math.log(2)], rtol=1e-15
    )
    np.testing.assert_array_equal(policy.log_probabilities == -np.inf, PI == 0.0)
    np.testing.assert_allclose(logsumexp(policy.log_probabilities, axis=1), 0.0, atol=1e-15)
    assert repr(policy) == "TabularPolicy(states=4, actions=3)"


def test_lists_and_integers_are_probabilities():
    policy = ck.TabularPolicy([[0, 1], [1, 0]])
    assert policy.probabilities.dtype == policy.log_probabilities.dtype == np.float64
    np.testing.assert_array_equal(policy.probabilities, [[0.0, 1.0], [1.0, 0.0]])


def test_uniform():
    policy = ck.TabularPolicy.uniform(2, 3)
    np.testing.assert_array_equal(policy.probabilities, np.full((2, 3), 1 / 3))
    np.testing.assert_allclose(policy.log_probabilities, -math.log(3.0), rtol=1e-15)


@pytest.mark.parametrize("choice", [[2, 0, 1], (2, 0, 1), np.array([2, 0, 1], dtype=np.uint8)])
def test_deterministic(choice):
    policy = ck.TabularPolicy.deterministic(choice, 3)
    np.testing.assert_array_equal(policy.probabilities, [[0, 0, 1], [1, 0, 0], [0, 1, 0]])


def test_a_policy_is_read_only_and_keeps_no_tie_to_the_users_array():
    given_table, given_logs = PI.copy(), np.log(np.full((2, 2), 0.5))
    direct, from_log = ck.TabularPolicy(given_table), ck.TabularPolicy.from_log(given_logs)
    given_table[...] = 77.0
    given_logs[...] = 77.0
    np.testing.assert_array_equal(direct.probabilities, PI)
    np.testing.assert_allclose(from_log.probabilities, 0.5, rtol=1e-15)
    for policy in (direct, from_log, ck.TabularPolicy.uniform(2, 2)):
        for array in (policy.probabilities, policy.log_probabilities):
            with pytest.raises(ValueError, match="read-only"):
                array[0, 0] = 0.5


# -- from logarithms -------------------------------------------------------------------------------------------------


def test_from_log_normalises_by_hand():
    # exp(0) : exp(log 3) = 1 : 3
    policy = ck.TabularPolicy.from_log(np.array([[0.0, math.log(3.0)], [math.log(3.0), 0.0]]))
    np.testing.assert_allclose(policy.probabilities, [[0.25, 0.75], [0.75, 0.25]], rtol=1e-15)


def test_from_log_with_huge_weights_does_not_overflow():
    tail = math.log1p(math.exp(-2.0))
    weights = np.array([[1e6, 1e6 - 2.0], [-1e6, -1e6 - 2.0], [1e6, -1e6], [-1e6, 1e6], [-np.inf, -1e6]])
    expected = [[-tail, -2.0 - tail], [-tail, -2.0 - tail], [0.0, -2e6], [-2e6, 0.0], [-np.inf, 0.0]]
    policy = ck.TabularPolicy.from_log(weights)
    np.testing.assert_allclose(policy.log_probabilities, expected, rtol=1e-15)
    np.testing.assert_array_equal(policy.probabilities[2:], [[1, 0], [0, 1], [0, 1]])


def test_from_log_takes_lists_and_integers():
    expected = ck.TabularPolicy.from_log(np.array([[0.0, 1.0]])).probabilities
    np.testing.assert_array_equal(ck.TabularPolicy.from_log([[0.0, 1.0]]).probabilities, expected)
    np.testing.assert_array_equal(ck.TabularPolicy.from_log(np.array([[0, 1]])).probabilities, expected)


@settings(max_examples=100, deadline=None)
@given(tables)
def test_rows_of_log_probabilities_sum_to_one(weights):
    before = weights.copy()
    policy = ck.TabularPolicy.from_log(weights)
    np.testing.assert_array_equal(weights, before)
    np.testing.assert_allclose(logsumexp(policy.log_probabilities, axis=1), 0.0, atol=1e-15 * (weights.shape[1] + 1))
    np.testing.assert_allclose(policy.probabilities.sum(axis=1), 1.0, rtol=1e-15 * (weights.shape[1] + 1))
    np.testing.assert_array_equal(policy.probabilities, np.exp(policy.log_probabilities))
    # Differences of log-probabilities are those of the weights: nothing but the normalisation was done.
    differences = np.diff(weights, axis=1)
    np.testing.assert_allclose(np.diff(policy.log_probabilities, axis=1), differences, rtol=1e-15, atol=1e-9)


# -- sampling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [0, 2])
def test_samples_have_the_frequencies_of_the_probabilities(state):
    draws = 20_000
    policy, rng = ck.TabularPolicy(PI), np.random.default_rng(7)
    counts = np.bincount([policy.sample(state, rng) for _ in range(draws)], minlength=3)
    likely = PI[state] > 0.0
    expected = draws * PI[state, likely]
    # Pearson's statistic; a right sampler exceeds this with probability 1e-4, and the seed is fixed.
    statistic = ((counts[likely] - expected) ** 2 / expected).sum()
    assert statistic < chi2.ppf(1.0 - 1e-4, likely.sum() - 1)
    assert counts[~likely].sum() == 0


@pytest.mark.parametrize(
    ("row", "possible"),
    [
        ([0.0, 0.5, 0.5], {1, 2}),
        ([0.5, 0.0, 0.5], {0, 2}),
        ([0.5, 0.5, 0.0], {0, 1}),
        ([0.0, 1.0, 0.0], {1}),
        ([1.0, 0.0, 0.0], {0}),
    ],
)
def test_an_action_of_probability_zero_is_never_sampled(row, possible):
    policy, rng = ck.TabularPolicy([row]), np.random.default_rng(0)
    assert {policy.sample(0, rng) for _ in range(500)} == possible


class Extreme:
    """A generator at the ends of [0, 1), where rounding could choose an impossible action."""

    def __init__(self, u: float) -> None:
        self.u = u

    def random(self) -> float:
        return self.u


@pytest.mark.parametrize("row", [[0.0, 0.1, 0.2, 0.7, 0.0], [0.0, 1 / 3, 1 / 3, 1 / 3, 0.0], [0.0, 0.3, 0.0, 0.7, 0.0]])
def test_the_ends_of_the_unit_interval_are_possible_actions(row):
    for excess in (0.0, 4e-9, -4e-9):  # rows may be off by rounding
        policy = ck.TabularPolicy([np.array(row) * (1.0 + excess)])
        assert policy.sample(0, Extreme(0.0)) == 1
        assert policy.sample(0, Extreme(1.0 - 2.0**-53)) == 3


def test_equal_seeds_draw_equal_actions_as_plain_integers():
    policy = ck.TabularPolicy(PI)
    draws = [[policy.sample(np.int64(2), np.random.default_rng(seed)) for seed in range(30)] for _ in range(2)]
    assert draws[0] == draws[1]
    assert {type(action) for action in draws[0]} == {int}


@pytest.mark.parametrize("state", [-1, 4, 0.5, 1.0, "0", None, [0]])
def test_a_state_that_does_not_exist_is_refused(state):
    with pytest.raises(ValueError, match=re.escape(f"state {state!r} is not one of 0 to 3")):
        ck.TabularPolicy(PI).sample(state, np.random.default_rng(0))


# -- files -----------------------------------------------------------------------------------------------------------

POLICIES = {
    "zeros": lambda: ck.TabularPolicy(PI),
    "very negative logarithms": lambda: ck.TabularPolicy.from_log(np.array([[0.0, -1e5, -745.2], [-1e5, 1e5, 0.0]])),
    "thirds": lambda: ck.TabularPolicy.uniform(2, 3),
    "minus infinity": lambda: ck.TabularPolicy.from_log(np.array([[-np.inf, 0.1, -1e5]])),
    "one action": lambda: ck.TabularPolicy([[1.0]]),
}


@pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES)
def test_a_saved_policy_comes_back_exactly(make, tmp_path):
    policy = make()
    policy.save(tmp_path / "Politik ü.npz")
    loaded = ck.TabularPolicy.load(str(tmp_path / "Politik ü.npz"))
    assert os.listdir(tmp_path) == ["Politik ü.npz"]
    assert loaded.log_probabilities.shape == policy.log_probabilities.shape
    assert loaded.log_probabilities.dtype == np.float64
    assert loaded.log_probabilities.tobytes() == policy.log_probabilities.tobytes()
    np.testing.assert_allclose(loaded.probabilities, policy.probabilities, rtol=1e-15)
    assert not loaded.log_probabilities.flags.writeable
    assert not loaded.probabilities.flags.writeable


def test_a_failing_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "p.npz"
    ck.TabularPolicy(PI).save(path)
    before = path.read_bytes()

    def broken(file, *args, **kwargs):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", broken)
    monkeypatch.setattr(np, "savez_compressed", broken)
    with pytest.raises(OSError, match="disk full"):
        ck.TabularPolicy.uniform(1, 1).save(path)
    assert os.listdir(tmp_path) == ["p.npz"]
    assert path.read_bytes() == before


def packed(**entries) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **entries)
    return buffer.getvalue()


def policy_file(log_probabilities) -> bytes:
    return packed(kind=np.array("cmdpkit policy"), log_probabilities=np.array(log_probabilities))


def half_a_file() -> bytes:
    whole = policy_file(np.log(np.full((5, 5), 0.2)))
    return whole[: len(whole) // 2]


def model_file() -> bytes:
    return packed(kind=np.array("cmdpkit model"), log_probabilities=np.zeros((1, 1)))


BROKEN_FILES = {
    "empty": (lambda: b"", "was it damaged or made elsewhere?"),
    "text": (lambda: b"0.5 0.5\n" * 40, "was it damaged or made elsewhere?"),
    "truncated": (half_a_file, "was it damaged or made elsewhere?"),
    "model": (model_file, "holds 'cmdpkit model', but 'cmdpkit policy' is needed here"),
    "foreign": (lambda: packed(x=np.ones(3)), "was not written by cmdpkit"),
    "missing entry": (lambda: packed(kind=np.array("cmdpkit policy")), "the entry 'log_probabilities' is missing"),
    "nan": (lambda: policy_file([[0.0, np.nan]]), "the policy's probability of state 0, action 1 is nan"),
    "not normalised": (lambda: policy_file([[0.0, -np.inf], [0.0, 0.0]]), "probabilities in state 1 sum to 2, not 1"),
    "all impossible": (lambda: policy_file([[-np.inf, -np.inf]]), "probabilities in state 0 sum to 0, not 1"),
    "inf": (lambda: policy_file([[np.inf, 0.0]]), "the policy's probability of state 0, action 0 is inf"),
    "overflow": (lambda: policy_file([[0.0, -np.inf], [0.0, 1e6]]), "does not hold a valid policy"),
    "vector": (lambda: policy_file([0.0]), "have shape (1,); they need shape (states, actions)"),
    "no states": (lambda: policy_file(np.zeros((0, 2))), "have shape (0, 2); they need shape (states, actions)"),
    "strings": (lambda: policy_file([["a", "b"]]), "does not hold a valid policy"),
    "complex": (lambda: policy_file([[0j]]), "must hold real numbers"),
}


@pytest.mark.parametrize(("make", "fragment"), BROKEN_FILES.values(), ids=BROKEN_FILES)
def test_a_file_that_holds_no_policy_is_refused_by_name(make, fragment, tmp_path):
    path = tmp_path / "p.npz"
    path.write_bytes(make())
    with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
        ck.TabularPolicy.load(path)
    assert fragment in str(caught.value)


class Bomb:
    def __init__(self, folder) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_no_pickle_is_ever_executed(tmp_path):
    path = tmp_path / "p.npz"
    path.write_bytes(policy_file(np.array([[Bomb(tmp_path / "boom")]], dtype=object)))
    with pytest.raises(ValueError, match=re.escape(str(path))):
        ck.TabularPolicy.load(path)
    assert os.listdir(tmp_path) == ["p.npz"]
    with zipfile.ZipFile(path) as archive:  # the bomb is a real one: the file holds the call
        assert b"mkdir" in archive.read("log_probabilities.npy")


def test_a_saved_model_is_not_a_policy_and_a_missing_file_is_named(tmp_path):
    ck.problems.paper().save(tmp_path / "m.npz")
    with pytest.raises(ValueError, match=r"m\.npz holds 'cmdpkit model', but 'cmdpkit policy' is needed here"):
        ck.TabularPolicy.load(tmp_path / "m.npz")
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "none.npz"))):
        ck.TabularPolicy.load(tmp_path / "none.npz")


# -- refusals --------------------------------------------------------------------------------------------------------

SHAPE = "they need shape (states, actions)"

REFUSALS = {
    "row sum": ([[0.5, 0.5], [0.5, 0.6]], ValueError, "the policy's probabilities in state 1 sum to 1.1, not 1"),
    "more than rounding": ([[0.5, 0.5 + 2e-8]], ValueError, "in state 0 sum to 1.00000002, not 1"),
    "row of zeros": ([[1.0, 0.0], [0.0, 0.0]], ValueError, "in state 1 sum to 0, not 1"),
    "negative": ([[0.5, 0.5], [1.25, -0.25]], ValueError, "the policy's probability of state 1, action 1 is -0.25"),
    "nan": ([[np.nan, 0.5]], ValueError, "the policy's probability of state 0, action 0 is nan"),
    "inf": ([[0.5, np.inf]], ValueError, "the policy's probability of state 0, action 1 is inf"),
    "vector": ([0.5, 0.5], ValueError, f"a policy's probabilities have shape (2,); {SHAPE}"),
    "three axes": ([[[1.0]]], ValueError, f"a policy's probabilities have shape (1, 1, 1); {SHAPE}"),
    "empty": (np.zeros((0, 2)), ValueError, f"have shape (0, 2); {SHAPE}"),
    "no actions": (np.zeros((2, 0)), ValueError, f"have shape (2, 0); {SHAPE}"),
    "number": (1.0, ValueError, f"have shape (); {SHAPE}"),
    "ragged": ([[1.0], [0.5, 0.5]], ValueError, "a policy's probabilities is not a rectangular array"),
    "strings": ([["0.5", "0.5"]], TypeError, "a policy's probabilities must hold real numbers, not dtype <U3"),
    "complex": ([[1.0 + 0j]], TypeError, "a policy's probabilities must hold real numbers, not dtype complex128"),
    "objects": ([[None]], TypeError, "a policy's probabilities must hold real numbers, not dtype object"),
}


@pytest.mark.parametrize(("table", "kind", "fragment"), REFUSALS.values(), ids=REFUSALS)
def test_refusals_name_the_place(table, kind, fragment):
    with pytest.raises(kind, match=re.escape(fragment)):
        ck.TabularPolicy(table)


@pytest.mark.parametrize(
    ("choice", "place"),
    [([0, -1], "-1"), ([0, 2], "2"), ([0, 0.5], "0.5|float"), ([True, False], "bool"), ("01", "<U|str")],
    ids=repr,
)
def test_a_deterministic_choice_that_is_no_action_is_refused(choice, place):
    with pytest.raises((ValueError, TypeError), match=place):
        ck.TabularPolicy.deterministic(choice, 2)


@pytest.mark.parametrize(("states", "actions"), [(0, 2), (2, 0), (-1, 2), (2, -1)])
def test_a_uniform_policy_needs_states_and_actions(states, actions):
    with pytest.raises(ValueError, match=r"states|actions|negative"):
        ck.TabularPolicy.uniform(states, actions)


@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
def test_log_weights_that_are_no_numbers_are_refused(bad):
    with pytest.raises(ValueError, match=r"\b1\b"):  # in state 1
        ck.TabularPolicy.from_log(np.array([[0.0, 0.0], [bad, 0.0]]))


def test_log_weights_without_any_possible_action_are_refused():
    with pytest.raises(ValueError, match=r"\b1\b"):  # in state 1
        ck.TabularPolicy.from_log(np.array([[0.0, -np.inf], [-np.inf, -np.inf]]))


@pytest.mark.parametrize("shape", [(2,), (1, 2, 2), (0, 2), (2, 0)])
def test_log_weights_of_the_wrong_shape_are_refused(shape):
    with pytest.raises(ValueError, match=re.escape(str(shape))):
        ck.TabularPolicy.from_log(np.zeros(shape))


def test_states_that_are_never_visited_take_the_fallback():
    fallback = np.array([[0.5, 0.5], [0.1, 0.9], [0.3, 0.7]])
    occupancy = np.array([[1.0, 3.0], [0.0, 0.0], [-1e-18, 2.0]])
    policy = ck.TabularPolicy.from_occupancy(Pairs(3, 2), occupancy, fallback)
    np.testing.assert_allclose(policy.probabilities, [[0.25, 0.75], [0.1, 0.9], [0.0, 1.0]])


def test_stored_rows_are_normalised_unless_they_sum_to_one_already():
    log = np.log([[0.25, 0.75], [0.5, 0.5]])
    np.testing.assert_array_equal(ck.TabularPolicy.stored(Pairs(2, 2), log).log_probabilities, log)
    np.testing.assert_allclose(ck.TabularPolicy.stored(Pairs(2, 2), log + 1e-9).log_probabilities, log, rtol=1e-14)


def test_probabilities_that_are_no_normal_numbers_are_zero():
    logs = np.array([[0.0, -707.0, -720.0, -1e6, -np.inf]])
    policy = ck.TabularPolicy.softmax(Pairs(1, 5), logs)
    np.testing.assert_array_equal(policy.log_pi, logs)
    np.testing.assert_array_equal(policy.pi, [[1.0, np.exp(-707.0), 0.0, 0.0, 0.0]])
