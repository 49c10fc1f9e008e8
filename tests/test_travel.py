"""Results that travel: pickled, copied, sent between processes, saved and loaded."""

import copy
import json
import multiprocessing
import pickle

import numpy as np
import pytest
import scipy.sparse as sp

import cmdpkit as ck

ACROBOT = "cmdpkit/ConstrainedAcrobot-v0"


def solved(seed=0):
    return ck.solve(ck.problems.garnet(states=12, actions=3, seed=seed), "pmd-pd")


@pytest.fixture(scope="module")
def results():
    shop = ck.Simulator(
        lambda s, a, rng: ((s + a + rng.integers(2, size=s.size)) % 3, np.stack([a * 1.0, s * 0.5])),
        lambda n, rng: np.zeros(n, dtype=int),
        states=3,
        actions=2,
        gamma=0.8,
        constraints=[ck.AtMost(None, 2.0, name="use")],
        bounds=[(0.0, 1.0), (0.0, 1.0)],
    )
    few = ck.Sampling(rollouts=5, value_rollouts=50, certificate_rollouts=100)
    impossible = ck.CMDP(np.ones((1, 2, 1)), reward=[[0.0, 1.0]], constraints=[ck.AtMost([[1.0, 1.0]], 1.0)], gamma=0.5)
    return {
        "first order": solved(),
        "auto": ck.solve(ck.problems.paper()),
        "infeasible": ck.solve(impossible),
        "sampled model": ck.solve(ck.problems.paper(), sampling=few, max_iterations=3),
        "simulator": ck.solve(shop, sampling=few, max_iterations=3),
        "trained": ck.train(ACROBOT, limits=[5, 5], iterations=2, hidden=[8], steps=30, num_envs=2),
    }


NAMES = ["first order", "auto", "infeasible", "sampled model", "simulator", "trained"]


def assert_same(one, two):
    assert one.status is two.status
    assert (one.method, one.message, one.iterations, one.samples) == (
        two.method,
        two.message,
        two.iterations,
        two.samples,
    )
    np.testing.assert_array_equal(one.objective, two.objective)
    for name in ("constraint_values", "violations", "multipliers"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert one.history.columns == two.history.columns
    for name in one.history.columns:
        np.testing.assert_array_equal(one.history[name], two.history[name])
    for name in ("policy", "last_policy", "average_policy"):
        mine, theirs = getattr(one, name, None), getattr(two, name, None)
        assert type(mine) is type(theirs)
        if isinstance(mine, ck.TabularPolicy):
            np.testing.assert_array_equal(mine.log_probabilities, theirs.log_probabilities)
        elif isinstance(mine, ck.MixturePolicy):
            np.testing.assert_array_equal(mine.weights, theirs.weights)
            for a, b in zip(mine.policies, theirs.policies, strict=True):
                np.testing.assert_array_equal(a.log_probabilities, b.log_probabilities)
        elif mine is not None:
            for (w, b), (w2, b2) in zip(mine.layers, theirs.layers, strict=True):
                np.testing.assert_array_equal(w, w2)
                np.testing.assert_array_equal(b, b2)
    assert one.to_dict() == two.to_dict()


@pytest.mark.parametrize("name", [n for n in NAMES if n != "simulator"])  # a simulator is the user's own function
@pytest.mark.parametrize("travel", [lambda r: pickle.loads(pickle.dumps(r)), copy.deepcopy, copy.copy])
def test_results_survive_a_copy(results, name, travel):
    assert_same(results[name], travel(results[name]))


def test_a_pool_returns_results():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        [there] = pool.map_async(solved, [0]).get(timeout=120)
    here = solved(0)
    np.testing.assert_array_equal(there.policy.log_probabilities, here.policy.log_probabilities)
    np.testing.assert_array_equal(there.history.multipliers, here.history.multipliers)


def arrays_of(thing):
    """Every array that an object holds, directly or in its limits."""
    parts = list(vars(thing).values())
    parts += [limit.values for limit in getattr(thing, "constraints", ())]
    for part in parts:
        if isinstance(part, np.ndarray):
            yield part
        elif sp.issparse(part):
            yield from (part.data, part.indices, part.indptr)


@pytest.mark.parametrize("travel", [lambda r: pickle.loads(pickle.dumps(r)), copy.deepcopy])
@pytest.mark.parametrize(
    "thing",
    [ck.problems.paper(), ck.problems.two_queues(), ck.TabularPolicy([[0.5, 0.5]])],
    ids=["dense", "sparse", "policy"],
)
def test_copies_are_frozen_like_the_original(thing, travel):
    there = travel(thing)
    tables = list(arrays_of(there))
    assert len(tables) == len(list(arrays_of(thing)))
    assert all(not table.flags.writeable for table in tables)
    if isinstance(there, ck.CMDP):
        with pytest.raises(AttributeError, match="frozen"):
            there.gamma = 0.5


@pytest.mark.parametrize("name", NAMES)
def test_save_and_load_give_the_same_result(results, name, tmp_path):
    result = results[name]
    result.save(tmp_path / "run.npz")
    loaded = type(result).load(tmp_path / "run.npz")
    assert_same(result, loaded)
    if name != "trained":
        assert loaded.model.names == result.model.names
        assert str(loaded).splitlines()[2:5] == str(result).splitlines()[2:5]
        if result.certificate is not None:
            assert type(loaded.certificate) is type(result.certificate)
            assert loaded.certificate.to_dict() == result.certificate.to_dict()
    result.save(tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text()) == json.loads(json.dumps(result.to_dict()))


def test_what_is_not_a_result_is_refused(results, tmp_path):
    path = tmp_path / "run.npz"
    results["auto"].save(path)
    with pytest.raises(ValueError, match=r"it holds a Result; use cmdpkit\.Result\.load"):
        ck.TrainingResult.load(path)
    content = path.read_bytes()
    for size in (0, 10, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match="not a readable cmdpkit file"):
            ck.Result.load(path)
    results["auto"].policy.save(path)
    with pytest.raises(ValueError, match="'cmdpkit policy', but 'cmdpkit result' is needed"):
        ck.Result.load(path)
    results["auto"].save(tmp_path / "run.json")
    with pytest.raises(ValueError, match="summary"):
        ck.Result.load(tmp_path / "run.json")


def test_json_can_carry_the_policy(results):
    plain = json.loads(json.dumps(results["auto"].to_dict(policy=True)))
    np.testing.assert_array_equal(plain["policy"], results["auto"].policy.probabilities)
    assert "policy" not in results["auto"].to_dict()
    assert "weight_0" in results["trained"].to_dict(policy=True)["policy"]


def test_one_vocabulary(results):
    """A training run has the columns and attributes of every other, and its older names still work."""
    trained = results["trained"]
    shared = {"objective", "constraint_values", "violation", "multipliers", "time"}
    for name in NAMES:
        assert shared <= set(results[name].history.columns) | (
            {"constraint_values"} if name in ("auto", "infeasible") else set()
        )
        assert isinstance(results[name].samples, int) or name in ("first order", "auto", "infeasible")
    np.testing.assert_array_equal(trained.history["reward"], trained.history["objective"])
    np.testing.assert_array_equal(trained.history.costs, trained.history.constraint_values)
    np.testing.assert_array_equal(trained.history["steps"], trained.history["samples"])
    assert trained.steps == trained.samples == 2 * 30 * 2
    reward, costs = trained.recent()
    assert reward == trained.objective
    np.testing.assert_array_equal(trained.violations, np.maximum(costs - [5.0, 5.0], 0.0))
