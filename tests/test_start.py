"""Models with other limits or another objective, and solves that start from an earlier result."""

import numpy as np
import pytest

import cmdpkit as ck
from models import random_model


def rebuilt(cmdp, limits=None, **objective):
    """The same change made by hand, through the constructor."""
    constraints = [
        type(c)(c.values, (limits or {}).get(c.name, c.limit), c.name, c.per_step)
        for c in cmdp.constraints
        if (limits or {}).get(c.name, c.limit) is not None
    ]
    P = cmdp.transitions
    P = P if hasattr(P, "indptr") else P.reshape(cmdp.states, cmdp.actions, cmdp.states)
    objective = objective or {("reward" if cmdp.maximise else "cost"): cmdp.objective}
    return ck.CMDP(P, constraints=constraints, gamma=cmdp.gamma, initial=cmdp.initial, **objective)


def assert_same(one, other):
    for name in ("costs", "offsets", "units", "limits", "signs", "spans", "cost_sizes", "initial"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert (one.names, one.maximise, one.num_constraints) == (other.names, other.maximise, other.num_constraints)
    assert one.row_sums == other.row_sums


@pytest.mark.parametrize("seed", range(12))
def test_new_limits_are_those_of_a_model_built_anew(seed):
    cmdp = random_model(seed, constraints=3)
    limits = {"c0": 1.25, "c2": None}
    assert_same(cmdp.with_limits(limits), rebuilt(cmdp, limits))
    assert_same(cmdp.with_limits(c1=-2, c0=0.5), rebuilt(cmdp, {"c1": -2.0, "c0": 0.5}))
    assert_same(cmdp.tightened([0.1, 0.2, 0.3]), rebuilt(cmdp, dict(zip(cmdp.names, tightened(cmdp), strict=True))))


def tightened(cmdp):
    return [
        c.limit - d if isinstance(c, ck.AtMost) else c.limit + d
        for c, d in zip(cmdp.constraints, (0.1, 0.2, 0.3), strict=True)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_a_new_objective_is_that_of_a_model_built_anew(seed):
    cmdp = random_model(seed, constraints=2)
    table = np.random.default_rng(seed).normal(size=cmdp.objective.shape)
    assert_same(cmdp.with_objective(reward=table), rebuilt(cmdp, reward=table))
    assert_same(cmdp.with_objective(cost=table), rebuilt(cmdp, cost=table))
    assert_same(cmdp.with_objective(cost="c1"), rebuilt(cmdp, cost=cmdp.constraints[1].values))
    assert_same(cmdp.with_objective(reward="c0"), rebuilt(cmdp, reward=cmdp.constraints[0].values))


def test_nothing_is_copied_or_validated_again(monkeypatch):
    cmdp = random_model(3, constraints=2, sparse=True)

    def fail(*_):
        raise AssertionError("the transitions were looked at")

    for name in ("check_transitions", "check_rows", "longest_row", "check_initial"):
        monkeypatch.setattr(f"cmdpkit.model.cmdp.{name}", fail)
    other = cmdp.with_limits(c0=7.0)
    for shared in (cmdp.with_objective(cost="c0"), other, cmdp.tightened(0.5), cmdp.balanced()[0]):
        assert shared.transitions is cmdp.transitions
        assert np.shares_memory(shared.initial, cmdp.initial)
    assert np.shares_memory(other.costs, cmdp.costs)
    assert all(a.values is b.values for a, b in zip(other.constraints, cmdp.constraints, strict=True))
    assert cmdp.limits[0] != 7.0, "the original stays as it is"
    with pytest.raises(AttributeError, match="frozen"):
        other.gamma = 0.5
    with pytest.raises(ValueError, match="read-only"):
        other.limits[0] = 1.0


def test_names_that_are_no_identifiers():
    P = np.ones((1, 2, 1))
    cmdp = ck.CMDP(P, cost=[[0.0, 1.0]], constraints=[ck.AtLeast([[0.0, 1.0]], 1.0, name="long wait")], gamma=0.5)
    assert ck.solve(cmdp.with_limits({"long wait": 1.5})).objective == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.with_limits(power=1.0), r"no constraint 'power'; the model has 'c0', 'c1'"),
        (lambda c: c.with_limits({"c0": 1.0}, c0=2.0), "'c0' was given twice"),
        (lambda c: c.with_limits(c0=float("nan")), "limit of constraint 'c0' must be finite"),
        (lambda c: c.with_limits(c0=1e200), "must not exceed"),
        (lambda c: c.with_objective(cost="c7"), r"'c7' is not the name of a constraint; the model has 'c0', 'c1'"),
        (lambda c: c.with_objective(), "exactly one of reward"),
        (lambda c: c.with_objective(cost="c0", reward="c1"), "exactly one of reward"),
        (lambda c: c.with_objective(cost=np.zeros((1, 1))), "cost has shape"),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(random_model(3, constraints=2, states=4))


def test_types_are_checked():
    cmdp = random_model(3, constraints=2)
    with pytest.raises(TypeError, match="mapping"):
        cmdp.with_limits([1.0, 2.0])
    with pytest.raises(TypeError, match="limit of constraint 'c0' must be a number"):
        cmdp.with_limits(c0="1")
