"""Models with other limits or another objective, and solves that start from an earlier result."""

import numpy as np
import pytest

import cmdpkit as ck
from models import lp_optimum, random_model


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

    for name in ("transitions.check_transitions", "transitions.check_rows", "transitions.longest_row"):
        monkeypatch.setattr(f"cmdpkit.model.{name}", fail)
    for name in ("cmdp.check_initial", "variants.check_initial", "variants.check_rows"):
        monkeypatch.setattr(f"cmdpkit.model.{name}", fail)
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


# -- start -----------------------------------------------------------------------------------------------------------

METHODS = ("auto", "columns", "lp", "pmd-pd", "pmd-pd-zero")


def changes(cmdp):
    """The same model with a looser limit, without its first limit, and with another objective."""
    c = cmdp.constraints[0]
    looser = cmdp.with_limits({c.name: c.limit + c.sign * 0.05 * np.abs(c.values).max()})
    noise = 1.0 + 0.1 * np.random.default_rng(0).random(cmdp.objective.shape)
    other = cmdp.with_objective(**{"reward" if cmdp.maximise else "cost": cmdp.objective * noise})
    return [looser, cmdp.with_limits({c.name: None}), other, cmdp.with_objective(cost=cmdp.names[1])]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", [1, 4, 9])
def test_every_method_reaches_the_optimum_from_a_start(seed, method):
    cmdp = random_model(seed, constraints=3)
    first = ck.solve(cmdp)
    for other in changes(cmdp):
        result = ck.solve(other, method, start=first)
        assert result.status is ck.Status.OPTIMAL
        assert result.objective == pytest.approx(lp_optimum(other)[0], rel=3e-6, abs=3e-6)
        again = ck.solve(other, method, start=result)
        assert again.status is ck.Status.OPTIMAL


def test_an_optimum_starts_from_itself_with_one_question():
    cmdp = ck.problems.paper()
    first = ck.solve(cmdp, "columns")
    assert first.iterations > 1
    assert ck.solve(cmdp, "columns", start=first).iterations == 1
    assert ck.solve(cmdp, "columns", start=first).objective == pytest.approx(first.objective, abs=1e-9)


def test_old_columns_are_not_evaluated_again_for_new_limits(monkeypatch):
    cmdp = random_model(5, constraints=3, states=24)
    first = ck.solve(cmdp, "columns")
    monkeypatch.setattr("cmdpkit.exact.columns.ColumnSearch.evaluate", None)
    looser = cmdp.with_limits(c0=cmdp.limits[0] + cmdp.signs[0])
    assert ck.solve(looser, "columns", start=first).status is ck.Status.OPTIMAL
    with pytest.raises(TypeError):  # another objective needs them evaluated again
        ck.solve(cmdp.with_objective(cost=cmdp.objective**2), "columns", start=first)


def test_columns_keep_their_values_only_where_the_chains_are_the_same():
    from cmdpkit.exact.columns import ColumnSearch
    from cmdpkit.exact.memory import known_rows, recall

    cmdp = random_model(5, constraints=2, states=9, sparse=False)
    memory = ck.solve(cmdp).memory
    assert known_rows(rebuilt(cmdp), cmdp) == [0, 1, 2]  # equal numbers in other arrays
    cheap = cmdp.with_objective(cost=cmdp.units[1] * np.asarray(cmdp.constraints[0].values))
    assert known_rows(cheap, cmdp) == [1, 1, 2]
    P = np.roll(cmdp.transitions.reshape(9, -1, 9), 1, axis=0)
    settings = {"constraints": cmdp.constraints, "gamma": cmdp.gamma, "initial": cmdp.initial, "cost": cmdp.objective}
    moved = ck.CMDP(P, **settings)
    assert known_rows(moved, cmdp) is None
    assert known_rows(ck.CMDP(P, **settings | {"initial": 0}), moved) is None
    for model in (cheap, moved):
        search = ColumnSearch(model)
        recall(search, memory)
        assert search.columns
        for column, values in zip(search.columns, search.values, strict=True):
            policy = ck.TabularPolicy.over(model.pairs, search.probabilities(column))
            value = ck.evaluate(model, policy)
            np.testing.assert_allclose(model.user_constraint_values(values[1:]), value.constraint_values, atol=1e-6)
            assert model.user_objective(values[0]) == pytest.approx(value.objective, abs=1e-6)


@pytest.mark.parametrize("method", ["npg-pd", "crpo", "augmented-lagrangian", "pid-lagrangian"])
def test_a_first_order_run_continues_from_the_last_policy(method):
    cmdp = ck.problems.paper()
    half = ck.solve(cmdp, method, max_iterations=150, tol=0.0)
    rest, cold = (ck.solve(cmdp, method, max_iterations=1, tol=0.0, start=s) for s in (half, None))
    # The first policy is the last one, mixed with 1 % of the uniform one
    assert abs(rest.history.objective[0] - half.history.objective[-1]) < 0.1
    assert abs(cold.history.objective[0] - half.history.objective[-1]) > 0.2
    mixed = 0.99 * half.last_policy.probabilities + 0.01 / cmdp.actions
    given = {"initial_multipliers": half.multipliers} if method not in ("crpo", "pid-lagrangian") else {}
    same = ck.solve(cmdp, method, max_iterations=1, tol=0.0, initial_policy=mixed, **given)
    np.testing.assert_allclose(same.history.objective, rest.history.objective, rtol=1e-12)


def test_a_start_for_a_simulator_and_from_a_file(tmp_path):
    cmdp = ck.problems.paper()
    first = ck.solve(cmdp)
    learned = ck.solve(cmdp, sampling=ck.Sampling(), max_iterations=2, start=first)
    assert learned.history.objective[0] > 4.0  # near the optimum of 4.46; the uniform policy has 2.42
    first.save(tmp_path / "run.npz")
    loaded = ck.Result.load(tmp_path / "run.npz")
    assert loaded.memory is None
    assert ck.solve(cmdp, start=loaded).iterations == 1


def test_limits_are_matched_by_name():
    cmdp = random_model(5, constraints=3, states=24)
    first = ck.solve(cmdp)
    fewer = cmdp.with_limits(c0=None)
    from cmdpkit.run.start import start_from

    np.testing.assert_array_equal(start_from(first, fewer).multipliers, first.multipliers[1:])
    np.testing.assert_array_equal(start_from(ck.solve(fewer), cmdp).multipliers[0], 0.0)


def test_models_of_extreme_scale_start_from_policies_alone():
    cmdp = random_model(5, constraints=2, states=9)
    huge = cmdp.with_objective(cost=1e90 * cmdp.objective)
    assert ck.solve(huge, start=ck.solve(cmdp)).status is ck.Status.OPTIMAL
    assert ck.solve(huge, start=ck.solve(huge)).status is ck.Status.OPTIMAL


def test_the_lp_answers_with_the_start_when_it_may_not_run():
    cmdp = random_model(5, constraints=2, states=9)
    first = ck.solve(cmdp)
    result = ck.solve(cmdp, "lp", time_limit=0.0, start=first)
    np.testing.assert_array_equal(result.policy.probabilities, first.policy.probabilities)


def test_starts_that_do_not_fit_are_refused():
    cmdp, other = random_model(5, states=9), random_model(5, states=8)
    first = ck.solve(cmdp)
    with pytest.raises(ValueError, match=r"a model with 9 states and .* this one has 8"):
        ck.solve(other, start=first)
    with pytest.raises(TypeError, match=r"start must be a result of cmdpkit.solve, not TabularPolicy"):
        ck.solve(cmdp, start=first.policy)
    with pytest.raises(ValueError, match="start sets 'initial_policy'"):
        ck.solve(cmdp, "pmd-pd", start=first, initial_policy=first.policy)
