"""Limits with two ends: `Equal` and `Between`, against an LP that states them as they are; objectives per step."""

import json

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linprog

import cmdpkit as ck
from cmdpkit.exact.master import best_mixture
from models import random_model

EXACT = ("auto", "columns", "lp")


def two_sided_model(seed, size=1.0, shift=0.0, sparse=False):
    """A random model with one to three limits of all kinds, whose ends lie around the values of a random policy.

    `shift` moves every end by that part of the largest value possible, which makes most models infeasible; `size` is
    the size of the constraints' costs.
    """
    rng = np.random.default_rng(seed)
    S, A, gamma = int(rng.integers(2, 15)), int(rng.integers(2, 5)), float(rng.choice([0.0, 0.5, 0.9, 0.99]))
    P = rng.dirichlet(np.full(S, 0.3), size=(S, A))
    rho = rng.dirichlet(np.ones(S))
    pi = rng.dirichlet(np.ones(A), size=S)
    visits = np.linalg.solve(np.eye(S) - gamma * np.einsum("sa,sat->ts", pi, P), rho)[:, None] * pi
    limits = []
    for i in range(int(rng.integers(1, 4))):
        c = size * rng.uniform(-1.0, 1.0, size=(S, A))
        per_step = bool(rng.random() < 0.3)
        unit = 1.0 - gamma if per_step else 1.0
        value = unit * float((visits * c).sum() + shift * np.abs(c).max() / (1.0 - gamma))
        width = 0.03 * unit * size / (1.0 - gamma)
        kind = "equal" if i == 0 and seed % 2 else rng.choice(["equal", "between", "at most", "at least"])
        rest = {"name": f"c{i}", "per_step": per_step}
        if kind == "equal":
            limits.append(ck.Equal(c, value, **rest))
        elif kind == "between":
            limits.append(ck.Between(c, value - width * rng.random(), value + width * rng.random(), **rest))
        else:
            limits.append((ck.AtMost if kind == "at most" else ck.AtLeast)(c, value, **rest))
    objective = {("reward" if rng.random() < 0.5 else "cost"): rng.normal(size=(S, A))}
    if sparse:
        P = sp.csr_array(P.reshape(S * A, S))
    per_step = bool(rng.random() < 0.3)
    settings = {"objective_per_step": per_step, "action_axis": 1, **objective}
    return ck.CMDP(P, constraints=limits, gamma=gamma, initial=rho, **settings)


def optimum(cmdp, unit=1.0):
    """(objective, prices) of the occupancy LP with equalities and ranges as such; None if it is infeasible.

    Prices are those of the user: of an upper end ≥ 0, of a lower end ≤ 0 (but ≥ 0 for `AtLeast`), of an equality any.
    `unit` divides all constraints, for HiGHS's absolute tolerances.
    """
    S, A, gamma = cmdp.states, cmdp.actions, cmdp.gamma
    P = cmdp.transitions.toarray() if sp.issparse(cmdp.transitions) else np.asarray(cmdp.transitions)
    flow = (np.repeat(np.eye(S), A, axis=0) - gamma * P).T
    upper, equal = [], []
    for i, c in enumerate(cmdp.constraints):
        row = np.ravel(c.values) * (1.0 - gamma if c.per_step else 1.0) / unit
        low, high = np.array(c.ends) / unit
        if isinstance(c, ck.Equal):
            equal.append((i, row, low))
            continue
        if np.isfinite(high):
            upper.append((i, row, high, 1.0))
        if np.isfinite(low):
            upper.append((i, -row, -low, 1.0 if isinstance(c, ck.AtLeast) else -1.0))
    sense = (-1.0 if cmdp.maximise else 1.0) * (1.0 - gamma if cmdp.objective_per_step else 1.0)
    answer = linprog(
        sense * cmdp.objective.ravel(),
        A_ub=np.array([row for _, row, _, _ in upper]) if upper else None,
        b_ub=[b for _, _, b, _ in upper] or None,
        A_eq=np.vstack([flow, *(row for _, row, _ in equal)]),
        b_eq=np.append(cmdp.initial, [b for _, _, b in equal]),
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if answer.status == 2:
        return None
    assert answer.status == 0, answer.message
    prices = np.zeros(cmdp.num_constraints)
    for (i, _, _, sign), price in zip(upper, -answer.ineqlin.marginals, strict=True):
        prices[i] += sign * price / unit
    for (i, _, _), price in zip(equal, -answer.eqlin.marginals[S:], strict=True):
        prices[i] += price / unit
    return (-1.0 if cmdp.maximise else 1.0) * answer.fun, prices


def check_optimal(cmdp, result, truth):
    objective = truth[0]
    assert result.status is ck.Status.OPTIMAL, result
    assert result.objective == pytest.approx(objective, rel=2e-6, abs=2e-6)
    assert result.certificate.bound == pytest.approx(objective, rel=2e-6, abs=2e-6)
    assert result.constraint_values.shape == result.multipliers.shape == (cmdp.num_constraints,)
    for c, value, violation in zip(cmdp.constraints, result.constraint_values, result.violations, strict=True):
        low, high = c.ends
        end = min(c.ends, key=lambda end: abs(end - value))
        assert max(low - value, value - high) <= 1e-6 * max(1.0, abs(end))
        assert violation == pytest.approx(max(low - value, value - high, 0.0), abs=1e-12 * max(1.0, abs(end)))


# -- against the LP ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("block", range(5))
def test_the_lp_agrees(method, block):
    """Feasible models by construction: the ends lie around the values of a policy."""
    for seed in range(20 * block, 20 * block + 20):
        cmdp = two_sided_model(seed, sparse=seed % 3 == 0)
        truth = optimum(cmdp)
        assert truth is not None
        result = ck.solve(cmdp, method)
        check_optimal(cmdp, result, truth)
        # The prices prove the bound: also when they are not those that HiGHS chose among several
        proof = ck.certify(cmdp, result.policy, multipliers=result.multipliers)
        assert proof.optimal(1e-6)
        np.testing.assert_array_equal(proof.multipliers, result.multipliers)


def test_prices_are_those_of_the_lp():
    """Where the LP's prices are unique: a small change of each limit changes the optimum by its price."""
    compared = 0
    for seed in range(40):
        cmdp = two_sided_model(seed)
        truth = optimum(cmdp)
        assert truth is not None
        result = ck.solve(cmdp)
        if ck.slater_margin(cmdp) > -1e-9 or np.abs(truth[1]).min() > 1e-6:
            unique = [optimum(_moved(cmdp, 1e-7 * side)) for side in (-1.0, 1.0)]
            if None not in unique and all(np.allclose(u[1], truth[1], atol=1e-9) for u in unique if u is not None):
                np.testing.assert_allclose(result.multipliers, truth[1], rtol=1e-5, atol=1e-7)
                compared += 1
    assert compared >= 10


def _moved(cmdp, delta):
    moved = [
        ck.Between(c.values, c.low + delta, c.high + delta, c.name, c.per_step)
        if isinstance(c, ck.Between)
        else type(c)(c.values, c.limit + delta, c.name, c.per_step)
        for c in cmdp.constraints
    ]
    return cmdp._derived(moved)


@pytest.mark.parametrize("method", EXACT)
def test_impossible_limits_are_proved_so(method):
    infeasible = 0
    for seed in range(40):
        cmdp = two_sided_model(seed, shift=0.3)
        truth, result = optimum(cmdp), ck.solve(cmdp, method)
        if truth is not None:
            check_optimal(cmdp, result, truth)
            continue
        infeasible += 1
        assert result.status is ck.Status.INFEASIBLE, result
        y = result.certificate.infeasibility
        assert y.shape == (cmdp.num_constraints,)
        signed = np.array([isinstance(c, (ck.Equal, ck.Between)) for c in cmdp.constraints])
        assert (y[~signed] >= 0.0).all()
        # Σ y_i V_i > 0 for every policy, the one with the least sum included: an MDP without constraints
        table = sum(
            weight * (-1.0 if isinstance(c, ck.AtLeast) else 1.0) * (1.0 - cmdp.gamma if c.per_step else 1.0) * c.values
            for weight, c in zip(y, cmdp.constraints, strict=True)
        )
        ends = [
            weight * (c.ends[1] if weight > 0.0 else c.ends[0]) if not isinstance(c, ck.AtLeast) else -weight * c.limit
            for weight, c in zip(y, cmdp.constraints, strict=True)
            if weight != 0.0
        ]
        least = optimum(ck.CMDP(_table(cmdp), cost=table, gamma=cmdp.gamma, initial=cmdp.initial))
        assert least is not None
        assert least[0] - sum(ends) > 0.0
        assert result.certificate.infeasibility_margin <= (least[0] - sum(ends)) * (1.0 + 1e-6) + 1e-12
    assert infeasible >= 10


def _table(cmdp):
    return np.asarray(cmdp.transitions).reshape(cmdp.states, cmdp.actions, cmdp.states)


@pytest.mark.parametrize("size", [1e-120, 1e-6, 1e6, 1e120])
@pytest.mark.parametrize("method", EXACT)
def test_extreme_sizes(method, size):
    for seed in range(8):
        cmdp = two_sided_model(seed, size=size)
        result = ck.solve(cmdp, method)
        truth = optimum(cmdp, unit=size)
        assert truth is not None
        if size >= 1.0:
            check_optimal(cmdp, result, truth)
            continue
        # Violations are relative to max(1, |limit|): tiny limits are met to tol in that sense, and solved better
        assert result.status is ck.Status.OPTIMAL, result
        assert result.objective == pytest.approx(truth[0], rel=1e-4, abs=1e-4)


def test_infeasible_at_extreme_sizes():
    for seed in range(6):
        cmdp = two_sided_model(seed, size=1e120, shift=0.3)
        wanted = ck.Status.INFEASIBLE if optimum(cmdp, unit=1e120) is None else ck.Status.OPTIMAL
        assert ck.solve(cmdp).status is wanted


@pytest.mark.parametrize("seed", range(12))
def test_first_order_steps_reach_an_equality(seed):
    cmdp = two_sided_model(2 * seed + 1)
    result = ck.solve(cmdp, "pmd-pd")
    truth = optimum(cmdp)
    assert truth is not None
    check_optimal(cmdp, result, truth)
    history = result.history
    assert history["constraint_values"].shape == history["multipliers"].shape == (len(history), cmdp.num_constraints)
    missed = [cmdp.misses(values).max() for values in history["constraint_values"]]
    np.testing.assert_allclose(history["violation"], missed, atol=1e-9)


def test_an_equality_is_two_inequalities():
    """The same run as with both sides stated, value for value; the two prices are reported as one."""
    plain = random_model(3, constraints=1, sparse=False, gamma=0.9, states=8)
    values = plain.constraints[0].values
    center = float(ck.solve(plain).constraint_values[0])
    one, two = (
        plain._derived(limits)
        for limits in (
            [ck.Between(values, center - 0.1, center + 0.1, name="c")],
            [ck.AtMost(values, center + 0.1, name="high"), ck.AtLeast(values, center - 0.1, name="low")],
        )
    )
    for method in ("auto", "columns", "pmd-pd", "npg-pd", "crpo"):
        first, second = (ck.solve(cmdp, method, max_iterations=30, tol=1e-4) for cmdp in (one, two))
        assert first.objective == second.objective
        assert first.multipliers[0] == second.multipliers[0] - second.multipliers[1]
        np.testing.assert_array_equal(first.history["objective"], second.history["objective"])
        np.testing.assert_array_equal(first.history["multipliers"] @ [1.0], second.history["multipliers"] @ [1.0, -1.0])


def test_netting_two_prices_keeps_the_bound():
    """min of the Lagrangian with prices (λ₊, λ₋) is no larger than with their difference, by (high − low) min(λ)."""
    cmdp = two_sided_model(4)
    both = cmdp._derived([ck.Between(cmdp.constraints[0].values, 0.1, 0.4, "c")])
    split = cmdp._derived(
        [ck.AtMost(both.constraints[0].values, 0.4, "a"), ck.AtLeast(both.constraints[0].values, 0.1, "b")],
    )
    pi = np.full((cmdp.states, cmdp.actions), 1.0 / cmdp.actions)
    sense = -1.0 if cmdp.maximise else 1.0
    for high, low in ((2.0, 0.5), (0.5, 2.0), (1.0, 1.0)):
        rows = np.array([high, low])
        np.testing.assert_array_equal(both.stated_prices(rows), [high - low])
        net = sense * ck.certify(both, pi, [high - low]).bound
        assert net == pytest.approx(sense * ck.certify(split, pi, rows).bound + 0.3 * min(high, low), abs=1e-9)


def test_the_master_prices_one_of_two_opposite_rows():
    """Two columns with values −1 and 1 of one quantity, costs 0 and 1, and the quantity held at 0.

    Half of each costs 0.5; c + λ v is the same for both at λ = −0.5, which the lower of the two sides pays.
    """
    rows = np.array([[-1.0, 1.0], [1.0, -1.0]])
    for order in ([0, 1], [1, 0]):
        mixture = best_mixture(np.array([0.0, 1.0])[order], rows[:, order], np.zeros(2), opposites=np.array([[0, 1]]))
        np.testing.assert_allclose(mixture.weights, [0.5, 0.5], atol=1e-12)
        np.testing.assert_allclose(mixture.prices, [0.0, 0.5], atol=1e-12)


def test_prices_go_from_rows_to_constraints_and_back():
    c = np.ones((1, 2))
    limits = [ck.AtLeast(c, 0.1, "a"), ck.Equal(c, 0.2, "b"), ck.AtMost(c, 9.0, "c"), ck.Between(c, 0.0, 1.0, "d")]
    cmdp = ck.CMDP(np.ones((1, 2, 1)), reward=[[0.0, 1.0]], constraints=limits, gamma=0.5)
    assert (cmdp.num_constraints, cmdp.num_rows, cmdp.names) == (4, 6, ["a", "b", "c", "d"])
    assert [(r.name, r.symbol, r.limit) for r in cmdp.rows] == [
        ("a", ">=", 0.1),
        ("b", "<=", 0.2),
        ("b", ">=", 0.2),
        ("c", "<=", 9.0),
        ("d", "<=", 1.0),
        ("d", ">=", 0.0),
    ]
    prices = np.array([1.0, -2.0, 3.0, 4.0])
    np.testing.assert_array_equal(cmdp.row_prices(prices), [1.0, 0.0, 2.0, 3.0, 4.0, 0.0])
    np.testing.assert_array_equal(cmdp.stated_prices(cmdp.row_prices(prices)), prices)
    np.testing.assert_array_equal(cmdp.violations(np.array([-1.0, -1.0, 1.0, 0.5, -2.0, 3.0])), [0.0, 1.0, 0.5, 3.0])
    with pytest.raises(ValueError, match=r"nonnegative \(except for Equal and Between\)"):
        ck.certify(cmdp, np.full((1, 2), 0.5), [1.0, 1.0, -1.0, 1.0])
    with pytest.raises(ValueError, match="the model has 4 constraints"):
        ck.certify(cmdp, np.full((1, 2), 0.5), np.ones(6))


# -- what users state and see ------------------------------------------------------------------------------------------


def machine(*limits, **settings):
    """Work pays 1 and wears by 1; γ = 0.8, so that the sums lie between 0 and 5."""
    return ck.CMDP(np.ones((1, 2, 1)), reward=[[0.0, 1.0]], constraints=limits, gamma=0.8, **settings)


WEAR = [[0.0, 1.0]]


@pytest.mark.parametrize(
    ("limit", "value", "price"),
    [
        (ck.Equal(WEAR, 2.0, name="wear"), 2.0, 1.0),
        (ck.Equal([[0.0, -1.0]], -2.0, name="wear"), -2.0, -1.0),
        (ck.Between(WEAR, 1.0, 2.0, name="wear"), 2.0, 1.0),
        (ck.Between([[1.0, 0.0]], 1.0, 2.0, name="wear"), 1.0, -1.0),
        (ck.Between(WEAR, 1.0, 9.0, name="wear"), 5.0, 0.0),
        (ck.Equal(WEAR, 0.4, name="wear", per_step=True), 0.4, 5.0),
    ],
)
def test_values_and_prices_by_hand(limit, value, price):
    result = ck.solve(machine(limit))
    wear = result.constraint("wear")
    assert wear.value == pytest.approx(value, abs=1e-9)
    assert wear.price == pytest.approx(price, abs=1e-9)
    assert wear.limit == limit.bound
    assert wear.slack == pytest.approx(4.0 if value == 5.0 else 0.0, abs=1e-9)
    assert wear.violation <= 1e-9


def test_a_constraint_by_a_wrong_name():
    with pytest.raises(ValueError, match="there is no constraint 'power'; the model has 'wear'"):
        ck.solve(machine(ck.Equal(WEAR, 2.0, name="wear"))).constraint("power")


REFUSED = {
    "low is high": (lambda: ck.Between(WEAR, 1.0, 1.0, name="w"), ValueError, "use cmdpkit.Equal(values, 1)"),
    "wrong order": (lambda: ck.Between(WEAR, 2.0, 1.0, name="w"), ValueError, "low of constraint 'w' is 2, above high"),
    "nan": (lambda: ck.Equal(WEAR, np.nan, name="w"), ValueError, "the limit of constraint 'w' must be finite"),
    "no low": (lambda: ck.Between(WEAR, -np.inf, 1.0, name="w"), ValueError, "low of constraint 'w' must be finite"),
    "text": (lambda: ck.Equal(WEAR, "1", name="w"), TypeError, "the limit of constraint 'w'"),
    "per_step": (lambda: ck.Equal(WEAR, 1.0, per_step="no"), TypeError, "per_step of constraint 'constraint 1'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_limits_are_refused(case):
    limit, error, words = REFUSED[case]
    with pytest.raises(error) as caught:
        machine(limit())
    assert words in str(caught.value)


def test_models_and_results_are_saved_with_what_was_stated(tmp_path):
    limits = [ck.Equal(WEAR, 2.0, name="wear"), ck.Between(WEAR, 0.1, 0.9, per_step=True), ck.AtLeast(WEAR, 1.0)]
    cmdp = machine(*limits, objective_name="profit", objective_per_step=True)
    cmdp.save(tmp_path / "m.npz")
    loaded = ck.CMDP.load(tmp_path / "m.npz")
    result = ck.solve(loaded)
    result.save(tmp_path / "r.npz")
    for found in (loaded, ck.Result.load(tmp_path / "r.npz").model):
        assert [(type(c), c.bound, c.name, c.per_step) for c in found.constraints] == [
            (type(c), c.bound, c.name, c.per_step) for c in cmdp.constraints
        ]
        assert (found.objective_name, found.objective_per_step) == ("profit", True)
    again = ck.Result.load(tmp_path / "r.npz")
    assert again.constraint("wear") == result.constraint("wear")
    assert str(again) == str(result)


def test_models_of_the_first_kinds_are_saved_as_before(tmp_path):
    machine(ck.AtMost(WEAR, 2.0)).save(tmp_path / "m.npz")
    with np.load(tmp_path / "m.npz") as arrays:
        assert int(arrays["version"]) == 1
        assert not {"lows", "objective_name", "objective_per_step"} & set(arrays.files)


def test_reports_and_json_show_one_constraint():
    cmdp = machine(ck.Equal(WEAR, 2.0, name="wear"), ck.Between(WEAR, 1.0, 3.0, name="use"), objective_name="profit")
    result = ck.solve(cmdp)
    text = str(result)
    assert "== 2" in text
    assert "1 to 3" in text
    assert text.splitlines()[2].split()[:2] == ["profit", "2"]
    told = json.loads(json.dumps(result.to_dict()))
    assert [(c["name"], c["sense"], c["limit"]) for c in told["constraints"]] == [
        ("wear", "==", 2.0),
        ("use", "between", [1.0, 3.0]),
    ]
    assert told["objective_name"] == "profit"
    missed = ck.certify(cmdp, [[0.0, 1.0]])
    np.testing.assert_allclose(missed.violations, [3.0, 2.0])
    assert missed.violation == pytest.approx(1.5)  # of 2, relative to it


def test_evaluate_gives_one_row_per_constraint():
    evaluation = ck.evaluate(machine(ck.Between(WEAR, 1.0, 2.0), ck.AtLeast(WEAR, 0.0)), [[0.5, 0.5]])
    np.testing.assert_allclose(evaluation.constraint_values, [2.5, 2.5])
    assert evaluation.state_values.shape == (3, 1)
    assert evaluation.action_values.shape == (3, 1, 2)


def test_callbacks_see_one_number_per_constraint():
    seen = []
    for method in ("auto", "lp", "pmd-pd"):
        ck.solve(machine(ck.Equal(WEAR, 2.0)), method, callback=seen.append)
    assert {news.multipliers.shape for news in seen} == {(1,)}


def test_steps_and_multipliers_are_given_per_constraint():
    """A vector of one number per constraint does what the number does."""
    cmdp = machine(ck.Equal(WEAR, 2.0), ck.AtMost(WEAR, 3.0))
    runs = [
        ck.solve(cmdp, "pmd-pd", max_iterations=20, tol=0.0, step=1.0, eta_dual=eta, initial_multipliers=[-0.5, 0.1])
        for eta in (0.3, [0.3, 0.3])
    ]
    np.testing.assert_array_equal(runs[0].history["objective"], runs[1].history["objective"])
    assert runs[0].history["multipliers"].shape == (20, 2)
    with pytest.raises(ValueError, match="eta_dual must be one number, or one number for each of the 2 constraints"):
        ck.solve(cmdp, "pmd-pd", step=1.0, eta_dual=[0.3, 0.3, 0.3])


def test_an_equality_has_no_slater_point():
    cmdp = machine(ck.Equal(WEAR, 2.0))
    assert ck.slater_margin(cmdp) == pytest.approx(0.0, abs=1e-9)
    assert ck.solve(cmdp, "pmd-pd-zero").status is ck.Status.NO_SLATER_POINT
    zero = ck.solve(machine(ck.Between(WEAR, 1.0, 2.0)), "pmd-pd-zero")
    assert zero.status is ck.Status.OPTIMAL
    assert zero.violations[0] == 0.0


# -- other limits, earlier results, trade-offs -------------------------------------------------------------------------


def test_limits_are_changed_by_name():
    cmdp = machine(ck.Equal(WEAR, 2.0, name="wear"), ck.Between(WEAR, 1.0, 3.0, name="use"), objective_name="profit")
    moved = cmdp.with_limits(wear=1.5, use=(1.2, 1.4))
    assert [c.bound for c in moved.constraints] == [1.5, [1.2, 1.4]]
    assert ck.solve(moved).status is ck.Status.INFEASIBLE
    assert ck.solve(moved.with_limits(wear=None)).objective == pytest.approx(1.4, abs=1e-9)
    assert moved.objective_name == "profit"
    assert moved.with_objective(cost="wear").objective_name == "wear"
    for wrong, words in (({"wear": (1.0, 2.0)}, "is one number"), ({"use": 1.0}, r"is \(low, high\), not 1.0")):
        with pytest.raises(ValueError, match=words):
            cmdp.with_limits(wrong)


@pytest.mark.parametrize("method", [*EXACT, "pmd-pd"])
def test_an_earlier_result_starts_another_limit(method):
    cmdp = two_sided_model(1)
    first = ck.solve(cmdp, method)
    c = cmdp.constraints[0]
    near = cmdp.with_limits({c.name: c.limit + 1e-3 * max(1.0, abs(c.limit))})
    truth = optimum(near)
    assert truth is not None
    check_optimal(near, ck.solve(near, method, start=first), truth)
    one = machine(ck.Equal([[1.0, 0.0]], 2.0, name="c"))
    other = machine(ck.AtMost([[1.0, 0.0]], 4.0, name="c"))
    assert ck.solve(one, method).multipliers[0] == pytest.approx(-1.0, abs=1e-4)
    assert ck.solve(other, method, start=ck.solve(one, method)).objective == pytest.approx(5.0, abs=1e-4)


def test_a_frontier_over_one_end():
    """At most x of 5 units of work: the profit is x, down to the other end of the range."""
    cmdp = machine(ck.Between(WEAR, 1.0, 2.0, name="wear"), objective_per_step=True)
    curve = ck.frontier(cmdp, "wear <=", [1.0, 2.0, 3.0])
    np.testing.assert_allclose(curve.objectives, [0.2, 0.4, 0.6], atol=1e-4)
    whole = ck.frontier(cmdp, "wear <=")
    assert whole.least[1] == pytest.approx(1.0, abs=1e-3)
    with pytest.raises(ValueError, match=r"'wear' is Between and has two ends.*'wear <=' .* or 'wear >='"):
        ck.frontier(cmdp, "wear")
    with pytest.raises(ValueError, match="the model has 'wear <=', 'wear >='"):
        ck.frontier(cmdp, "tear")
    lower = ck.frontier(cmdp, "wear >=", [0.5, 1.5])
    np.testing.assert_allclose(lower.objectives, [0.4, 0.4], atol=1e-4)


def test_units_of_a_limit_with_two_ends():
    """By the name of the limit both ends count in the unit, by that of an end only one."""
    cmdp = machine(ck.Between(WEAR, 6.0, 7.0, name="wear"), objective_per_step=True)
    np.testing.assert_allclose(ck.diagnose(cmdp, {"wear": 0.5}).units, [0.5, 0.5])
    np.testing.assert_allclose(ck.diagnose(cmdp, {"wear >=": 0.5}).units, [1.0, 0.5])
    np.testing.assert_allclose(ck.diagnose(cmdp, "relative").units, [7.0, 6.0])
    assert ck.diagnose(cmdp).conflict == ("wear >=",)


def test_a_diagnosis_names_the_end_that_conflicts():
    cmdp = machine(ck.Equal(WEAR, 2.0, name="wear"), ck.AtMost(WEAR, 1.0, name="use"))
    found = ck.diagnose(cmdp)
    assert found.conflict == ("wear >=", "use")
    assert found.relaxations["use"].attained == pytest.approx(2.0, abs=1e-5)
    assert found.relaxations["wear >="].attained == pytest.approx(1.0, abs=1e-5)
    assert found.relaxations["wear <="] is None
    result = ck.solve(cmdp)
    assert result.status is ck.Status.INFEASIBLE
    assert result.certificate.infeasibility[0] < 0.0 < result.certificate.infeasibility[1]
    assert "'wear >=' to 1" in result.message


def test_an_equality_randomises_in_one_state():
    """Two rows of one quantity are dependent: a vertex needs no more randomised states than constraints."""
    for seed in range(1, 40, 2):
        cmdp = two_sided_model(seed)
        for method in EXACT:
            assert len(ck.solve(cmdp, method).policy.randomised_states()) <= cmdp.num_constraints


def test_the_best_deterministic_policy_of_a_range():
    """Work or rest for ever: 5 or 0 units of wear, and only one of them lies in the range."""
    found = ck.solve(machine(ck.Between(WEAR, 4.0, 6.0, name="wear")), deterministic=True)
    assert found.objective == pytest.approx(5.0, abs=1e-9)
    none = ck.solve(machine(ck.Equal(WEAR, 2.0, name="wear")), deterministic=True)
    assert none.status is ck.Status.INFEASIBLE
    assert none.certificate.infeasibility is None


# -- samples -----------------------------------------------------------------------------------------------------------


def simulator(*limits, **settings):
    def step(states, actions, rng):
        return states, np.stack([actions.astype(float)] * (1 + len(limits)))

    start = lambda count, rng: np.zeros(count, dtype=int)  # noqa: E731
    bounds = [(0.0, 1.0)] * (1 + len(limits))
    return ck.Simulator(step, start, states=1, actions=2, gamma=0.8, constraints=limits, bounds=bounds, **settings)


def test_a_simulator_reaches_an_equality():
    sim = simulator(ck.Equal(None, 2.0, name="wear"))
    result = ck.solve(sim, max_iterations=200)
    assert result.multipliers.shape == result.constraint_values.shape == (1,)
    assert result.average_certificate.constraint_values[0] == pytest.approx(2.0, abs=0.1)
    low, high = result.certificate.intervals[0]
    assert result.violations[0] == pytest.approx(abs(result.constraint_values[0] - 2.0))
    assert result.certificate.verdicts == ["undecided" if low <= 2.0 <= high else "violated"]
    pooled = ck.solve(sim, sampling=ck.Sampling(estimator="pooled"), max_iterations=100)
    assert pooled.average_certificate.constraint_values[0] == pytest.approx(2.0, abs=0.1)
    known = ck.solve(machine(ck.Equal(WEAR, 2.0)), sampling=ck.Sampling(), max_iterations=100)
    assert known.average_certificate.violation < 0.05


@pytest.mark.parametrize(
    ("limit", "verdict"),
    [
        (ck.Between(None, 1.0, 4.0), "satisfied"),
        (ck.Between(None, 3.0, 4.0), "violated"),
        (ck.Between(None, 1.0, 2.0), "violated"),
        (ck.Between(None, 2.5, 4.0), "undecided"),
        (ck.Equal(None, 3.0), "violated"),
        (ck.Equal(None, 2.5), "undecided"),
        (ck.Between(None, 0.2, 0.8, per_step=True), "satisfied"),
    ],
)
def test_verdicts_by_rollouts(limit, verdict):
    """The uniform policy wears by 2.5, or 0.5 per step."""
    proof = ck.certify_by_simulation(simulator(limit), [[0.5, 0.5]], rollouts=20_000)
    assert proof.verdicts == [verdict]
    assert proof.intervals.shape == (1, 2)


# -- objectives per step -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("method", ["auto", "lp", "pmd-pd"])
def test_an_objective_per_step_is_a_share_of_the_sum(seed, method):
    total = random_model(seed, constraints=2, sparse=False, gamma=0.9, states=8)
    kind = "reward" if total.maximise else "cost"
    step = ck.CMDP(
        _table(total),
        constraints=total.constraints,
        gamma=0.9,
        initial=total.initial,
        objective_per_step=True,
        **{kind: total.objective},
    )
    whole, share = ck.solve(total, method, tol=1e-8), ck.solve(step, method, tol=1e-9)
    assert share.status is ck.Status.OPTIMAL
    assert share.objective == pytest.approx(0.1 * whole.objective, rel=1e-6, abs=1e-7)
    assert share.certificate.bound == pytest.approx(0.1 * whole.certificate.bound, rel=1e-6, abs=1e-7)
    assert ck.evaluate(step, share.policy).objective == pytest.approx(share.objective)
    if method != "pmd-pd":
        np.testing.assert_allclose(share.multipliers, 0.1 * whole.multipliers, rtol=1e-5, atol=1e-7)
    assert "per step" in str(share)


def test_an_objective_per_step_from_samples():
    sim = simulator(ck.AtMost(None, 0.4, per_step=True), objective_per_step=True, objective_name="profit")
    result = ck.solve(sim, max_iterations=200)
    assert result.average_certificate.objective == pytest.approx(0.4, abs=0.02)
    low, high = result.certificate.objective_interval
    assert low <= result.objective <= high
    assert high - low < 0.1
    assert "profit" in str(result)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"objective_per_step": 1}, "objective_per_step must be True or False"), ({"objective_name": ""}, "non-empty")],
)
def test_wrong_descriptions_of_the_objective_are_refused(settings, words):
    with pytest.raises(TypeError, match=words):
        machine(**settings)
