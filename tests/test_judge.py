"""The judge of the fuzzer, on models computed by hand, and on certificates that are wrong on purpose."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import cmdpkit as ck
from fuzz.averages import ExactAverages, recurrent_classes
from fuzz.exact import ExactModel, above, below, fractions, integers, solve
from fuzz.judge import Judge, slater_bracket
from models import random_model, two_state


def ring(limit=1.0, at_least=False, gamma=0.5, per_step=False):
    """Two states in a ring; action 1 costs 1 in state 0. From state 0: V_c(p) = p / (1 − γ²)."""
    P = np.zeros((2, 2, 2))
    P[0, :, 1] = P[1, :, 0] = 1.0
    cost = [[0.0, 1.0], [0.0, 0.0]]
    kind = ck.AtLeast if at_least else ck.AtMost
    return ck.CMDP(P, reward=cost, constraints=[kind(cost, limit, per_step=per_step)], gamma=gamma, initial=0)


def kinds(findings):
    return {finding.kind for finding in findings}


def test_exact_values_by_hand():
    # γ = 1/2: visits of state 0 are 4/3; with p = 1/4 the reward is 1/3, and V_1 = 1/3 − 1
    model = ExactModel(ring())
    assert model.values([[0.75, 0.25], [1.0, 0.0]]) == [Fraction(-1, 3), Fraction(-2, 3)]
    # per step: (1 − γ) 1/3 − 1/8
    assert ExactModel(ring(0.125, per_step=True)).values([[0.75, 0.25], [1.0, 0.0]])[1] == Fraction(1, 24)
    # at least 1/8: V_1 = 1/8 − 1/3
    assert ExactModel(ring(0.125, at_least=True)).values([[0.75, 0.25], [1.0, 0.0]])[1] == Fraction(-5, 24)


def test_exact_minima_by_hand():
    # V_0 + λ V_1 = (λ − 1) 4/3 p − λ limit: p = 1 for λ < 1, p = 0 for λ > 1
    model = ExactModel(ring())
    assert model.minimum([1.0, 0.25]) == Fraction(-1) - Fraction(1, 4)
    assert model.minimum([1.0, 3.0]) == -3
    assert model.minimiser([1.0, 0.25])[0].tolist() == [0.0, 1.0]


def test_the_two_state_model_by_its_closed_form():
    gamma, limit = Fraction(0.9), 2
    model = ExactModel(two_state())
    # the dual at λ = 1 − γ is the optimum −(1/(1 − γ) + (1 − γ) b), exactly, when λ is that number exactly
    exact = model._policy_iteration((Fraction(1), 1 - gamma))[0]
    assert exact == -(1 / (1 - gamma) + (1 - gamma) * limit)


def test_rows_that_do_not_sum_to_one_are_taken_as_they_are():
    total = 1.0 - 1e-9
    cmdp = ck.CMDP([[[total]]], cost=[[1.0]], gamma=0.9)
    assert ExactModel(cmdp).values([[1.0]])[0] == 1 / (1 - Fraction(0.9) * Fraction(total))


@pytest.mark.parametrize("seed", range(6))
def test_elimination_and_refinement_agree(seed):
    from fuzz import exact

    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 12))
    gamma = float(rng.choice([0.5, 0.99, 0.99999]))
    chain = rng.dirichlet(np.full(n, 0.2), size=n)
    matrix, _ = integers(fractions(np.eye(n)) - fractions(chain) * Fraction(gamma))
    rhs, _ = integers(fractions(rng.normal(size=n) * 10.0 ** rng.uniform(-200, 100, size=n)))
    (x, denominator), (y, other) = solve(matrix, rhs), exact._refine(matrix, rhs)
    assert ((matrix @ x) == rhs * denominator).all()
    largest = max(abs(Fraction(v, denominator)) for v in x)
    assert all(abs(Fraction(v, denominator) - Fraction(w, other)) < largest / 2**180 for v, w in zip(x, y, strict=True))


@pytest.mark.parametrize("seed", range(10))
def test_policy_iteration_beats_every_deterministic_policy(seed):
    cmdp = random_model(seed, constraints=2, states=3)
    rng, model = np.random.default_rng(seed), ExactModel(cmdp)
    weights = [1.0, *rng.exponential(size=2)]
    choices = np.stack(np.meshgrid(*[range(cmdp.actions)] * 3), -1).reshape(-1, 3)[:60]
    values = [model.values(np.eye(cmdp.actions)[c]) for c in choices]
    lagrangians = [sum(Fraction(w) * v for w, v in zip(weights, vs, strict=True)) for vs in values]
    assert min(lagrangians) >= model.minimum(weights)
    attained = model.values(model.minimiser(weights))
    assert sum(Fraction(w) * v for w, v in zip(weights, attained, strict=True)) == model.minimum(weights)


def test_doubles_around_a_fraction():
    third = Fraction(1, 3)
    assert Fraction(below(third)) < third < Fraction(above(third))
    assert np.nextafter(below(third), 1.0) == above(third)
    assert below(Fraction(1, 4)) == above(Fraction(1, 4)) == 0.25


def test_slater_margin_by_hand():
    # min V_1 = −1 (never pay); at least 3/2 is missed by 3/2 − 4/3 = 1/6
    assert slater_bracket(ExactModel(ring())) == (1, 1)
    low, high = slater_bracket(ExactModel(ring(1.5, at_least=True)))
    assert low == high == Fraction(-1, 6)
    judge = Judge(ring(1.5, at_least=True))
    assert judge.slater(-1 / 6) == []
    assert kinds(judge.slater(-1 / 6 + 1e-3)) == {"wrong-answer"}
    assert "sign" in judge.slater(1e-3)[0].detail


# -- planted errors --------------------------------------------------------------------------------------------------


def solved(cmdp):
    result = ck.solve(cmdp)
    judge = Judge(cmdp)
    assert judge.result(result, 1e-6, "auto") == []
    return result, judge, judge.policy(result.policy)


def test_a_right_certificate_passes_and_planted_errors_do_not():
    result, judge, values = solved(two_state())
    right = result.certificate
    planted = {
        "bound": replace(right, bound=right.bound - 1e-9),  # a reward: no policy reaches more than the bound
        "flipped": replace(right, bound=-right.bound),
        "multipliers": replace(right, multipliers=right.multipliers * 1.01),
        "nan": replace(right, bound=np.nan),
        "none": replace(right, bound=-np.inf),
    }
    for name, wrong in planted.items():
        assert "invalid-bound" in kinds(judge.certificate(wrong, values, name)), name
    for field, value in {"gap": 0.0, "objective": right.objective + 1e-6, "accuracy": 0.0}.items():
        assert "wrong-answer" in kinds(judge.certificate(replace(right, **{field: value}), values, field)), field


def test_a_violation_that_is_too_small_is_found():
    cmdp = two_state(limit=1.0)
    policy = ck.TabularPolicy.deterministic([1, 0], 2)
    right, judge = ck.certify(cmdp, policy), Judge(cmdp)
    values = judge.policy(policy)
    assert judge.certificate(right, values, "risky") == []
    # V_c = 1 / (1 − γ²) = 1 / 0.19, of which 1 is allowed
    assert right.violation == pytest.approx(1 / 0.19 - 1)
    wrong = replace(right, violation=right.violation * (1 - 1e-9))
    assert kinds(judge.certificate(wrong, values, "risky")) == {"wrong-answer"}


def test_wrong_farkas_proofs_are_found():
    cmdp = ring(1.5, at_least=True)
    cmdp = ck.CMDP(
        cmdp.transitions.reshape(2, 2, 2),
        reward=cmdp.objective,
        constraints=[*cmdp.constraints, ck.AtMost(cmdp.objective, 1.0, name="most")],
        gamma=0.5,
        initial=0,
    )
    result, judge, values = solved(cmdp)
    right = result.certificate
    assert result.status is ck.Status.INFEASIBLE
    for field, value in {
        "infeasibility": np.array([0.0, 1.0]),  # the second limit alone can be met
        "infeasibility_margin": right.infeasibility_margin + 0.5,
    }.items():
        assert "invalid-bound" in kinds(judge.certificate(replace(right, **{field: value}), values, field)), field
    for y in ([-1.0, 1.0], [0.0, 0.0], [np.nan, 1.0]):
        wrong = replace(right, infeasibility=np.array(y))
        assert kinds(judge.certificate(wrong, values, "y")) == {"invalid-bound"}
    assert kinds(judge.certificate(replace(right, infeasibility_margin=0.0), values, "0")) == {"invalid-bound"}


def test_a_feasible_model_that_is_refuted_is_a_wrong_answer():
    cmdp = ring(1.25, at_least=True)  # 4/3 can be attained
    result, judge, values = solved(cmdp)
    wrong = replace(result.certificate, infeasibility=np.array([1.0]), infeasibility_margin=1e-9)
    assert kinds(judge.certificate(wrong, values, "refuted")) == {"wrong-answer"}


def test_a_status_without_its_proof_is_a_wrong_answer():
    result, judge, _ = solved(two_state())
    assert kinds(judge.result(replace(result, status=ck.Status.INFEASIBLE), 1e-6, "auto")) == {"wrong-answer"}
    assert kinds(judge.result(result, 1e-30, "auto")) == {"wrong-answer"}
    assert kinds(judge.result(replace(result, status=ck.Status.NUMERICAL_ERROR), 1e-6, "auto")) == {"unproved"}


def test_a_mixture_has_the_average_values():
    cmdp = ring()
    never, always = ck.TabularPolicy.deterministic([0, 0], 2), ck.TabularPolicy.deterministic([1, 0], 2)
    judge = Judge(cmdp)
    mixture = ck.MixturePolicy([never, always], [0.25, 0.75])
    assert judge.policy(mixture) == [Fraction(-1), Fraction(0)]
    assert judge.certificate(ck.certify(cmdp, mixture, [0.5]), judge.policy(mixture), "mixture") == []


# -- other criteria, and limits from both sides ----------------------------------------------------------------------

PLAY = [[0.0, 1.0], [0.0, 0.0]]


def ending(limit=None, **criterion):
    """In state 0 action 1 earns and uses one unit; the process goes on to state 1 with probability 1/4, and stays."""
    P = np.zeros((2, 2, 2))
    P[0], P[1, :, 1] = [0.75, 0.25], 1.0
    limits = [] if limit is None else [limit]
    return ck.CMDP(P, reward=PLAY, constraints=limits, initial=0, action_axis=1, **criterion)


def loop(limit, maximise=True):
    """Three states in a circle, of which action 1 leaves out the last; rewards and use are 1 in state 0."""
    P = np.zeros((3, 2, 3))
    P[0, :, 1], P[1, 0, 2], P[1, 1, 0], P[2, :, 0] = 1.0, 1.0, 1.0, 1.0
    values = [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    kind = "reward" if maximise else "cost"
    return ck.CMDP(P, constraints=[limit(values)], average=True, initial=0, action_axis=1, **{kind: values})


MODELS = {
    "total": lambda: ending(ck.AtMost(PLAY, 1.0), gamma=1),
    "total equal": lambda: ending(ck.Equal(PLAY, 1.0), gamma=1),
    "horizon": lambda: ending(ck.AtMost(PLAY, 1.0), horizon=3),
    "discounted horizon": lambda: ending(ck.Between(PLAY, 0.25, 0.5), horizon=3, gamma=0.5),
    "stage": lambda: ending(ck.AtMost(PLAY, 0.25, stage=1), horizon=3),
    "average": lambda: loop(lambda values: ck.AtMost(values, 0.4)),
    "average between": lambda: loop(lambda values: ck.Between(values, 0.35, 0.4), maximise=False),
    "both sides": lambda: ending(ck.Equal(PLAY, 0.5), gamma=0.5),
}


def test_totals_and_horizons_by_hand():
    half = [[0.5, 0.5], [1.0, 0.0]]
    # 4 expected visits to state 0; without a limit V_0 is minus the reward
    assert ExactModel(ending(gamma=1)).values(half) == [-2]
    assert ExactModel(ending(gamma=1)).minimum([1.0]) == -4
    assert ExactModel(ending(gamma=1)).sizes() == [4]
    visits = 1 + Fraction(3, 4) + Fraction(9, 16)
    assert ExactModel(ending(horizon=3)).values(half) == [-visits / 2]
    assert ExactModel(ending(horizon=3)).minimum([1.0]) == -visits
    discounted = ExactModel(ending(horizon=3, gamma=0.5))
    assert discounted.minimum([1.0]) == -(1 + Fraction(3, 8) + Fraction(9, 64))
    staged = np.array([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]], [[0.5, 0.5], [1.0, 0.0]]])
    assert ExactModel(ending(horizon=3)).values(staged) == [-(1 + Fraction(9, 32))]
    alone = ExactModel(ending(ck.AtMost(PLAY, 0.25, stage=1), horizon=3))
    assert alone.values(half)[1] == Fraction(3, 8) - Fraction(1, 4)


def test_averages_by_hand():
    model = ExactAverages(loop(lambda values: ck.AtLeast(values, 0.25)))
    # the circle takes 3 steps, or 2 with action 1 in state 1
    assert model.minimum([1.0, 0.0]) == Fraction(-1, 2)
    assert model.values(np.eye(2)[[0, 0, 0]]) == [Fraction(-1, 3), Fraction(1, 4) - Fraction(1, 3)]
    half = [[1.0, 0.0], [0.5, 0.5], [1.0, 0.0]]
    assert model.values(half)[0] == -1 / Fraction(5, 2)
    assert model.is_connected()
    assert model.sizes() == [1, Fraction(5, 4)]


def test_averages_of_several_classes():
    P = np.zeros((3, 1, 3))
    P[0, 0], P[1, 0, 1], P[2, 0, 2] = [0.5, 0.125, 0.375], 1.0, 1.0
    model = ExactAverages(ck.CMDP(P, cost=[[9.0], [4.0], [0.0]], average=True, initial=0, action_axis=1))
    assert model.values(np.ones((3, 1))) == [1]  # it ends in state 1 with probability 1/4
    assert not model.is_connected()
    assert recurrent_classes(P[:, 0]) == [[1], [2]]
    # two states that lead to each other, if one likes
    P = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
    assert ExactAverages(ck.CMDP(P, cost=np.zeros((2, 2)), average=True, action_axis=1)).is_connected()
    P[1, 1] = P[1, 0]  # and one that cannot be left, with another that need not be
    assert not ExactAverages(ck.CMDP(P, cost=np.zeros((2, 2)), average=True, action_axis=1)).is_connected()


@pytest.mark.parametrize("name", MODELS)
def test_planted_errors_are_found_for_every_criterion(name):
    cmdp = MODELS[name]()
    result, judge, values = solved(cmdp)
    right, worse = result.certificate, -1.0 if cmdp.maximise else 1.0
    assert result.status is ck.Status.OPTIMAL
    planted = {
        "bound": replace(right, bound=right.bound + worse * 1e-9),
        "multipliers": replace(right, multipliers=right.multipliers - 0.5, bound=right.bound + worse * 1e-3),
        "nan": replace(right, bound=np.nan),
    }
    for what, wrong in planted.items():
        assert "invalid-bound" in kinds(judge.certificate(wrong, values, what)), what
    moved = {
        "objective": right.objective + 1e-6,
        "constraint_values": right.constraint_values + 1e-6,
        "gap": -1e-9,
        "accuracy": -1e-9,
    }
    for field, value in moved.items():
        assert "wrong-answer" in kinds(judge.certificate(replace(right, **{field: value}), values, field)), field
    loose = [values[0], *(v + Fraction(1, 1000) for v in values[1:])]
    assert "wrong-answer" in kinds(judge.certificate(right, loose, "violated"))


@pytest.mark.parametrize("name", ["total equal", "stage", "average between", "both sides"])
def test_wrong_refutations_are_found_for_every_criterion(name):
    cmdp = MODELS[name]()
    result, judge, values = solved(cmdp)
    for y in (1.0, -1.0) if cmdp.num_rows > 1 else (1.0,):
        wrong = replace(result.certificate, infeasibility=np.array([y]), infeasibility_margin=1e-9)
        # whether an equality can be met is known to rounding only
        assert kinds(judge.certificate(wrong, values, "refuted")) in ({"wrong-answer"}, {"invalid-bound"})


def test_refutations_of_limits_from_both_sides_have_a_sign():
    cmdp = ending(ck.Equal(PLAY, 5.0), gamma=1)  # 4 is the most
    result, judge, values = solved(cmdp)
    assert result.status is ck.Status.INFEASIBLE
    assert result.certificate.infeasibility[0] < 0.0
    wrong = replace(result.certificate, infeasibility=-result.certificate.infeasibility)
    assert kinds(judge.certificate(wrong, values, "sign")) == {"invalid-bound"}


def test_several_classes_are_counted_and_must_be_there():
    cmdp = MODELS["average"]()
    result, judge, _ = solved(cmdp)
    claimed = replace(result, status=ck.Status.SEVERAL_CLASSES)
    assert kinds(judge.result(claimed, 1e-6, "auto")) == {"several", "wrong-answer"}
    judge.several = True
    assert kinds(judge.result(claimed, 1e-6, "auto")) == {"several"}


def test_slater_margins_of_averages():
    # uses lie between 1/3 and 1/2
    cmdp = loop(lambda values: ck.AtMost(values, 0.4))
    judge = Judge(cmdp)
    assert judge.slater(0.4 - 1 / 3) == []
    assert judge.slater(ck.slater_margin(cmdp)) == []
    assert kinds(judge.slater(0.07)) == {"wrong-answer"}
