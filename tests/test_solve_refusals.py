"""Everything that `solve`, `certify` and `evaluate` refuse, and that they do so before any work."""

from __future__ import annotations

import re

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.evaluation import PolicySystem

STAY_OR_SWAP = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
SWAPS = np.array([[0.0, 1.0], [0.0, 1.0]])
REWARD = np.array([[0.0, 1.0], [0.5, 2.0]])
UNIFORM = np.full((2, 2), 0.5)

ONE = ck.CMDP(STAY_OR_SWAP, reward=REWARD, constraints=[ck.AtMost(SWAPS, 2.0, name="swaps")], gamma=0.8)
TWO = ck.CMDP(
    STAY_OR_SWAP,
    reward=REWARD,
    constraints=[ck.AtMost(SWAPS, 2.0, name="swaps"), ck.AtLeast(SWAPS, 0.5, name="few swaps")],
    gamma=0.8,
)
FREE = ck.CMDP(STAY_OR_SWAP, reward=REWARD, gamma=0.8)

LEARNER = ("step", "inner_steps", "alpha", "initial_policy")
OPTIONS = {
    "pmd-pd": (*LEARNER, "eta_dual", "initial_multipliers"),
    "npg-pd": (*LEARNER, "eta_dual", "dual_cap", "initial_multipliers"),
    "crpo": (*LEARNER, "tolerance"),
    "npg": LEARNER,
}
EXACT = ("auto", "columns", "lp")
VALUES = {
    "step": 1.0,
    "inner_steps": 2,
    "alpha": 0.5,
    "initial_policy": UNIFORM,
    "eta_dual": 1.0,
    "dual_cap": 10.0,
    "tolerance": 0.1,
    "initial_multipliers": [0.5],
}


def call(cmdp=ONE, method="pmd-pd", /, **arguments):
    return cmdp, method, arguments


REFUSALS = {
    # -- the model and the method
    "a policy for a model": (call(UNIFORM), TypeError, "a cmdpkit.CMDP is needed, not ndarray"),
    "a path for a model": (call("model.npz"), TypeError, "a cmdpkit.CMDP is needed, not str"),
    "no model": (call(None), TypeError, "a cmdpkit.CMDP is needed, not NoneType"),
    "the class for a model": (call(ck.CMDP), TypeError, "a cmdpkit.CMDP is needed"),
    "method": (call(ONE, "simplex"), ValueError, "unknown method 'simplex'; choose one of "),
    "method in capitals": (call(ONE, "LP"), ValueError, "unknown method 'LP'; choose one of"),
    "method None": (call(ONE, None), TypeError, "method must be a name or a rule, not NoneType"),
    "npg with constraints": (
        call(TWO, "npg"),
        ValueError,
        "method 'npg' ignores constraints, but the model has 2; use 'pmd-pd' or 'auto'",
    ),
    "resume no": (call(checkpoint="run.npz", resume="no"), TypeError, "resume must be True or False, not 'no'"),
    # -- tolerance and budgets
    "tol negative": (call(tol=-1e-6), ValueError, "tol must not be negative, got -1e-06"),
    "tol nan": (call(tol=np.nan), ValueError, "tol must be finite, not nan"),
    "tol inf": (call(tol=np.inf), ValueError, "tol must be finite, not inf"),
    "tol string": (call(tol="1e-6"), TypeError, "tol must be a number, not str"),
    "tol None": (call(tol=None), TypeError, "tol must be a number, not NoneType"),
    "tol True": (call(tol=True), TypeError, "tol must be a number, not bool"),
    "max_iterations negative": (call(max_iterations=-1), ValueError, "max_iterations must be at least 0, got -1"),
    "max_iterations 1.5": (call(max_iterations=1.5), TypeError, "max_iterations must be a whole number, not 1.5"),
    "max_iterations 10.0": (call(max_iterations=10.0), TypeError, "max_iterations must be a whole number, not 10.0"),
    "max_iterations inf": (call(max_iterations=np.inf), TypeError, "max_iterations must be a whole number, not inf"),
    "max_iterations string": (call(max_iterations="9"), TypeError, "max_iterations must be a whole number, not '9'"),
    "max_iterations True": (call(max_iterations=True), TypeError, "max_iterations must be a whole number, not True"),
    "time_limit negative": (call(time_limit=-1), ValueError, "time_limit must not be negative, got -1"),
    "time_limit nan": (call(time_limit=np.nan), ValueError, "time_limit must be finite, not nan"),
    "time_limit string": (call(time_limit="1s"), TypeError, "time_limit must be a number, not str"),
    "seed negative": (call(seed=-1), ValueError, "seed must be at least 0, got -1"),
    "seed 0.5": (call(seed=0.5), TypeError, "seed must be a whole number, not 0.5"),
    "seed string": (call(seed="lucky"), TypeError, "seed must be a whole number, not 'lucky'"),
    "seed None": (call(seed=None), TypeError, "seed must be a whole number, not None"),
    "seed True": (call(seed=True), TypeError, "seed must be a whole number, not True"),
    "callback": (call(callback=3), TypeError, "callback must be callable, not int"),
    "callback name": (call(callback="print"), TypeError, "callback must be callable, not str"),
    # -- options that the method does not take
    **{
        f"{option} for {method}": (
            call(FREE if method == "npg" else ONE, method, **{option: VALUES.get(option, 1.0)}),
            ValueError,
            f"unknown option {option!r} for method {method!r}; it takes ",
        )
        for method in (*OPTIONS, *EXACT)
        for option in (*VALUES, "stepsize", "rng")
        if option not in OPTIONS.get(method, ())
    },
    # -- values of the options
    "step 0": (call(step=0.0), ValueError, "step must be positive, got 0.0"),
    "step negative": (call(step=-1.0), ValueError, "step must be positive, got -1.0"),
    "step nan": (call(step=np.nan), ValueError, "step must be finite, not nan"),
    "step inf": (call(step=np.inf), ValueError, "step must be finite, not inf"),
    "step string": (call(step="big"), TypeError, "step must be a number, not str"),
    "step list": (call(step=[1.0]), TypeError, "step must be a number, not list"),
    "eta_dual 0": (call(eta_dual=0.0), ValueError, "eta_dual must be positive and finite, got 0.0"),
    "eta_dual negative": (call(eta_dual=-1.0), ValueError, "eta_dual must be positive and finite, got -1.0"),
    "eta_dual nan": (call(eta_dual=np.nan), ValueError, "eta_dual must be positive and finite, got nan"),
    "eta_dual inf": (call(eta_dual=np.inf), ValueError, "eta_dual must be positive and finite, got inf"),
    "eta_dual string": (call(eta_dual="big"), TypeError, "eta_dual must hold real numbers, not dtype <U3"),
    "eta_dual with a zero": (call(TWO, eta_dual=[1.0, 0.0]), ValueError, "eta_dual must be positive and finite"),
    "eta_dual too long": (call(eta_dual=np.array([1.0, 2.0])), ValueError, "eta_dual"),
    "eta_dual too long for two": (call(TWO, eta_dual=np.array([1.0, 2.0, 3.0])), ValueError, "eta_dual"),
    "eta_dual table": (call(TWO, eta_dual=np.ones((2, 2))), ValueError, "eta_dual"),
    "eta_dual for npg-pd": (call(ONE, "npg-pd", eta_dual=-1.0), ValueError, "eta_dual must be positive and finite"),
    "inner_steps 0": (call(inner_steps=0), ValueError, "inner_steps must be at least 1, got 0"),
    "inner_steps -1": (call(inner_steps=-1), ValueError, "inner_steps must be at least 1, got -1"),
    "inner_steps 1.5": (call(inner_steps=1.5), TypeError, "inner_steps must be a whole number, not 1.5"),
    "inner_steps True": (call(inner_steps=True), TypeError, "inner_steps must be a whole number, not True"),
    "alpha negative": (call(alpha=-0.5, steps="fixed"), ValueError, "alpha must not be negative, got -0.5"),
    "alpha nan": (call(alpha=np.nan, steps="fixed"), ValueError, "alpha must be finite, not nan"),
    "alpha string": (call(alpha="1", steps="fixed"), TypeError, "alpha must be a number, not str"),
    "dual_cap negative": (
        call(ONE, "npg-pd", dual_cap=-1.0),
        ValueError,
        "dual_cap must be a nonnegative number",
    ),
    "dual_cap nan": (call(ONE, "npg-pd", dual_cap=np.nan), ValueError, "(infinity is allowed), got nan"),
    "dual_cap string": (call(ONE, "npg-pd", dual_cap="9"), ValueError, "(infinity is allowed), got '9'"),
    "dual_cap complex": (
        call(ONE, "npg-pd", dual_cap=np.complex128(1)),
        ValueError,
        "dual_cap must be a nonnegative number",
    ),
    "dual_cap True": (call(ONE, "npg-pd", dual_cap=True), ValueError, "(infinity is allowed), got True"),
    "tolerance nan": (call(ONE, "crpo", tolerance=np.nan), ValueError, "tolerance must be finite, not nan"),
    "tolerance string": (call(ONE, "crpo", tolerance="0"), TypeError, "tolerance must be a number, not str"),
    # -- where to start
    **{
        f"initial_policy with a zero, {method}": (
            call(FREE if method == "npg" else ONE, method, initial_policy=[[0.5, 0.5], [0.0, 1.0]]),
            ValueError,
            "initial_policy gives state 1, action 0 probability zero, which mirror descent can never leave",
        )
        for method in OPTIONS
    },
    "initial_policy is deterministic": (
        call(initial_policy=ck.TabularPolicy.deterministic([0, 0], 2)),
        ValueError,
        "initial_policy gives state 0, action 1 probability zero",
    ),
    "initial_policy of another model": (
        call(initial_policy=np.full((3, 4), 0.25)),
        ValueError,
        "initial_policy is for 3 states and 4 actions, the model has 2 and 2",
    ),
    "initial_policy object of another model": (
        call(initial_policy=ck.TabularPolicy.uniform(2, 3)),
        ValueError,
        "initial_policy is for 2 states and 3 actions, the model has 2 and 2",
    ),
    "initial_policy row sum": (
        call(initial_policy=[[0.5, 0.5], [0.5, 0.4]]),
        ValueError,
        "in state 1 sum to 0.9, not 1",
    ),
    "initial_policy vector": (call(initial_policy=[0.5, 0.5]), ValueError, "have shape (2,)"),
    "initial_policy string": (call(initial_policy="uniform"), TypeError, "must hold real numbers"),
    **{
        f"initial_multipliers {what}, {method}": (
            call(TWO, method, initial_multipliers=value),
            kind,
            f"initial_multipliers {fragment}",
        )
        for method in ("pmd-pd", "npg-pd")
        for what, value, kind, fragment in (
            ("negative", [0.5, -0.5], ValueError, "must be finite and nonnegative"),
            ("nan", [np.nan, 0.5], ValueError, "must be finite and nonnegative"),
            ("inf", [0.5, np.inf], ValueError, "must be finite and nonnegative"),
            ("too short", [0.5], ValueError, "have shape (1,); the model has 2 constraints, so they need shape (2,)"),
            ("too long", [1.0, 2.0, 3.0], ValueError, "have shape (3,); the model has 2 constraints"),
            ("number", 0.5, ValueError, "have shape (1,); the model has 2 constraints"),
            ("table", [[0.5, 0.5]], ValueError, "have shape (1, 2); the model has 2 constraints"),
            ("string", "none", TypeError, "must hold real numbers"),
        )
    },
    "initial_multipliers above the cap": (
        call(TWO, "npg-pd", initial_multipliers=[0.5, 3.0], dual_cap=2.0),
        ValueError,
        "initial_multipliers must be at most dual_cap=2, got 3",
    ),
}


@pytest.mark.parametrize(("arguments", "kind", "fragment"), REFUSALS.values(), ids=REFUSALS)
def test_solve_refuses_before_any_work(arguments, kind, fragment, monkeypatch):
    """The message is the right one, the callback has not been called, and no linear system has been factorised."""
    cmdp, method, options = arguments
    heard, factorised = [], []
    original = PolicySystem.__init__

    def watched(self, *args, **kwargs):
        factorised.append(self)
        original(self, *args, **kwargs)

    monkeypatch.setattr(PolicySystem, "__init__", watched)
    with pytest.raises(kind, match=re.escape(fragment)):
        ck.solve(cmdp, method, **({"callback": heard.append, "max_iterations": 3} | options))
    assert heard == []
    assert factorised == []


def test_an_unknown_method_is_answered_with_all_methods():
    with pytest.raises(ValueError, match="unknown method 'simplex'") as caught:
        ck.solve(ONE, "simplex")
    offered = re.split(r"[,\s]+", str(caught.value).partition("choose one of ")[2])
    assert {*OPTIONS, *EXACT} <= set(offered)


@pytest.mark.parametrize("method", OPTIONS)
def test_an_unknown_option_is_answered_with_the_methods_options(method):
    with pytest.raises(ValueError, match="unknown option 'stepsize'") as caught:
        ck.solve(FREE if method == "npg" else ONE, method, stepsize=1.0)
    offered = re.split(r"[,\s]+", str(caught.value).partition("it takes ")[2])
    assert set(OPTIONS[method]) <= set(offered)
    assert not set(offered) & (set(VALUES) - set(OPTIONS[method]))


@pytest.mark.parametrize("method", EXACT)
def test_a_method_without_options_says_so(method):
    with pytest.raises(ValueError, match=f"unknown option 'step' for method '{method}'; it takes none"):
        ck.solve(ONE, method, step=1.0)


# -- what is not refused: otherwise refusing everything would pass the tests above ---------------------------------


@pytest.mark.parametrize("method", [*OPTIONS, *EXACT])
def test_every_option_and_budget_is_accepted_with_a_good_value(method):
    heard = []
    options = {name: VALUES[name] for name in OPTIONS.get(method, ())}
    result = ck.solve(
        FREE if method == "npg" else ONE,
        method,
        tol=1e-3,
        max_iterations=np.int64(4),
        time_limit=60,
        seed=np.int64(3),
        callback=heard.append,
        **options,
    )
    assert isinstance(result, ck.Result)
    assert result.method == method
    if method in OPTIONS:
        assert 1 <= len(heard) <= 4


@pytest.mark.parametrize("method", OPTIONS)
def test_none_means_the_default(method):
    cmdp = FREE if method == "npg" else ONE
    plain = ck.solve(cmdp, method, tol=0.0, max_iterations=3)
    with_none = ck.solve(cmdp, method, tol=0.0, max_iterations=3, **dict.fromkeys(OPTIONS[method]))
    np.testing.assert_array_equal(with_none.history["objective"], plain.history["objective"])


@pytest.mark.parametrize("method", ["pmd-pd", "npg-pd"])
@pytest.mark.parametrize("eta_dual", [[0.5, 0.5], (0.5, 0.5), np.array([0.5, 0.5])], ids=["list", "tuple", "array"])
def test_eta_dual_may_be_one_number_a_constraint(method, eta_dual):
    settings = {"tol": 0.0, "max_iterations": 5, "step": 1.0, "dual_cap": 5.0}
    if method == "pmd-pd":
        del settings["dual_cap"]
    one_number = ck.solve(TWO, method, eta_dual=0.5, **settings)
    several = ck.solve(TWO, method, eta_dual=eta_dual, **settings)
    np.testing.assert_array_equal(several.history["multipliers"], one_number.history["multipliers"])


def test_zero_budgets_and_an_infinite_cap_are_accepted():
    assert ck.solve(ONE, "pmd-pd", max_iterations=0).iterations == 0
    assert ck.solve(ONE, "pmd-pd", time_limit=0).status is ck.Status.TIME_LIMIT
    assert ck.solve(ONE, "npg-pd", dual_cap=np.inf, max_iterations=2, tol=0.0).iterations == 2
    assert ck.solve(ONE, "npg-pd", dual_cap=0, max_iterations=2, tol=0.0).iterations == 2


# -- certify and evaluate --------------------------------------------------------------------------------------------

BAD_POLICIES = {
    "too many states": (
        np.full((3, 2), 0.5),
        ValueError,
        "policy is for 3 states and 2 actions, the model has 2 and 2",
    ),
    "too many actions": (
        ck.TabularPolicy.uniform(2, 3),
        ValueError,
        "policy is for 2 states and 3 actions, the model has 2 and 2",
    ),
    "vector": ([0.5, 0.5], ValueError, "a policy's probabilities have shape (2,); they need shape (states, actions)"),
    "row sum": ([[0.5, 0.5], [0.5, 0.4]], ValueError, "the policy's probabilities in state 1 sum to 0.9, not 1"),
    "negative": ([[1.5, -0.5], [0.5, 0.5]], ValueError, "the policy's probability of state 0, action 1 is -0.5"),
    "nan": ([[0.5, 0.5], [np.nan, 0.5]], ValueError, "the policy's probability of state 1, action 0 is nan"),
    "strings": ([["a", "b"], ["c", "d"]], TypeError, "a policy's probabilities must hold real numbers"),
    "nothing": (None, TypeError, "a policy's probabilities must hold real numbers"),
}


@pytest.mark.parametrize("function", [ck.certify, ck.evaluate], ids=["certify", "evaluate"])
@pytest.mark.parametrize(("policy", "kind", "fragment"), BAD_POLICIES.values(), ids=BAD_POLICIES)
def test_certify_and_evaluate_refuse_a_bad_policy(function, policy, kind, fragment):
    with pytest.raises(kind, match=re.escape(fragment)):
        function(ONE, policy)


@pytest.mark.parametrize("function", [ck.certify, ck.evaluate], ids=["certify", "evaluate"])
@pytest.mark.parametrize("cmdp", [None, "model.npz", UNIFORM], ids=["None", "path", "array"])
def test_certify_and_evaluate_need_a_model(function, cmdp):
    with pytest.raises(TypeError, match=re.escape(type(cmdp).__name__)):
        function(cmdp, UNIFORM)


BAD_MULTIPLIERS = {
    "negative": ([0.5, -1e-9], ValueError, "multipliers must be finite and nonnegative, got"),
    "nan": ([np.nan, 0.5], ValueError, "multipliers must be finite and nonnegative, got"),
    "inf": ([np.inf, 0.5], ValueError, "multipliers must be finite and nonnegative, got"),
    "too few": ([0.5], ValueError, "multipliers have shape (1,); the model has 2 constraints, so they need shape (2,)"),
    "too many": ([0.5, 0.5, 0.5], ValueError, "multipliers have shape (3,); the model has 2 constraints"),
    "none": ([], ValueError, "multipliers have shape (0,); the model has 2 constraints"),
    "number": (0.5, ValueError, "multipliers have shape (1,); the model has 2 constraints"),
    "table": ([[0.5, 0.5]], ValueError, "multipliers have shape (1, 2); the model has 2 constraints"),
    "string": ("none", TypeError, "multipliers must hold real numbers, not dtype <U4"),
    "complex": ([0.5, 0.5j], TypeError, "multipliers must hold real numbers, not dtype complex128"),
}


@pytest.mark.parametrize(("multipliers", "kind", "fragment"), BAD_MULTIPLIERS.values(), ids=BAD_MULTIPLIERS)
def test_certify_refuses_bad_multipliers(multipliers, kind, fragment):
    with pytest.raises(kind, match=re.escape(fragment)):
        ck.certify(TWO, UNIFORM, multipliers)


def test_multipliers_of_a_model_without_constraints_are_none():
    with pytest.raises(ValueError, match=re.escape("multipliers have shape (1,); the model has 0 constraints")):
        ck.certify(FREE, UNIFORM, [1.0])
    assert ck.certify(FREE, UNIFORM, []).multipliers.shape == (0,)


def test_good_multipliers_are_accepted():
    for multipliers in ([0.5], (0,), np.array([2], dtype=int), 0.5):
        certificate = ck.certify(ONE, UNIFORM, multipliers)
        np.testing.assert_array_equal(certificate.multipliers, np.atleast_1d(multipliers))


@pytest.mark.parametrize("model", [ck.problems.paper, ck.problems.epidemic])
def test_a_result_in_place_of_its_policy_is_told_apart(model):
    cmdp = model()
    result = ck.solve(cmdp)
    for call in (ck.evaluate, ck.certify, ck.certify_by_simulation):
        with pytest.raises(TypeError, match=r"not a Result; pass its \.policy"):
            call(cmdp, result)
