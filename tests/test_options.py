"""Options: every domain at its ends, defaults, presets and variants, and what a run is identified by."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from cmdpkit import options
from cmdpkit.options import option, revalidated, validated
from cmdpkit.rules import CPO, CRPO, NPG, NPGPD, PMDPD, GrowingPMDPD, SampledPMDPD, TrustRegionPMDPD
from cmdpkit.rules.registry import Method, method_of, names, register, variants
from cmdpkit.run.choice import choose
from cmdpkit.settings import NeuralSettings, TabularSettings


@pytest.mark.parametrize(
    ("domain", "good", "bad"),
    [
        (options.ABOVE_ONE, [1.0 + 1e-12, 3], [1, 1.0, 0.5, np.inf]),
        (options.FRACTION, [0, 1, 0.5], [-1e-12, 1.0 + 1e-12, np.nan]),
        (options.GAMMA, [0, 0.999], [1.0, -0.1]),
        (options.CAP, [0, 2.5, np.inf], [-1e-12, np.nan, "1"]),
        (options.POSITIVE, [1e-300, 2], [0.0, -1.0, np.inf]),
        (options.NONNEGATIVE, [0.0, 2], [-1e-300, np.nan]),
        (options.WHOLE, [1, 10], [0, 1.0, True]),
        (options.FLAG, [True, np.bool_(False)], [0, "yes"]),
        (options.SIZES, [[0.1, 2.0]], [[], [0.0], 0.1, [np.inf]]),
        (options.WIDTHS, [[], (8, 8)], [[0], 8, [1.5]]),
    ],
)
def test_domains_at_their_ends(domain, good, bad):
    for value in good:
        np.testing.assert_array_equal(domain.check(value, "x", None), value)
    for value in bad:
        with pytest.raises((ValueError, TypeError), match=r"x|gamma"):
            domain.check(value, "x", None)


@pytest.mark.parametrize("domain", [options.POSITIVE_EACH, options.NONNEGATIVE_EACH])
def test_one_number_or_one_for_each_constraint(domain):
    for value in (0.5, [0.5, 1.0]):
        np.testing.assert_array_equal(domain.check(value, "x", 2), value)
    for value in ([0.5], [0.5, 1.0, 2.0], [[0.5, 1.0]]):
        with pytest.raises(ValueError, match="of the 2 constraints, got shape"):
            domain.check(value, "x", 2)
    for value in (-1.0, [1.0, np.inf]):
        with pytest.raises(ValueError, match="x must be"):
            domain.check(value, "x", 2)


def test_zero_steps_only_where_they_make_sense():
    np.testing.assert_array_equal(options.NONNEGATIVE_EACH.check([0.0, 1.0], "x", 2), [0.0, 1.0])
    for value in (0.0, [0.0, 1.0]):
        with pytest.raises(ValueError, match="positive and finite"):
            options.POSITIVE_EACH.check(value, "x", 2)


@dataclass(frozen=True)
class Settings:
    step: float = option(2.0, options.POSITIVE, "Size of a step.")
    dual: Any = option(None, options.POSITIVE_EACH, "Dual steps.")


def test_none_is_the_default_and_values_are_converted():
    assert validated(Settings, {"step": None}) == Settings(2.0)
    assert isinstance(validated(Settings, {"step": 3}).step, float)
    # an instance made by the user is checked and converted as well
    made = revalidated(Settings(step=3, dual=[1, 2]), constraints=2)
    assert isinstance(made.step, float)
    assert made.dual.dtype == float
    with pytest.raises(ValueError, match="step must be positive"):
        revalidated(Settings(step=-1.0))
    with pytest.raises(TypeError, match="unknown option 'stride'"):
        validated(Settings, {"stride": 1.0})


# -- methods -----------------------------------------------------------------------------------------------------------


def test_variants_live_side_by_side():
    exact = [method for method in variants("pmd-pd") if "exact" in method.learners]
    assert {method.steps: method.rule for method in exact} == {"growing": GrowingPMDPD, "fixed": PMDPD}
    sampled = [method for method in variants("pmd-pd") if "sampled" in method.learners]
    assert {method.steps: method.rule for method in sampled} == {"growing": SampledPMDPD, "fixed": PMDPD}
    neural = [method for method in variants("pmd-pd") if "neural" in method.learners]
    assert {method.steps: method.rule for method in neural} == {"implicit": TrustRegionPMDPD, "fixed": PMDPD}
    assert method_of(NPGPD()).name == "npg-pd"
    assert method_of(NPG()).name == "npg"
    assert method_of(Settings()) == Method("Settings", Settings)
    with pytest.raises(ValueError, match="no learner 'robot'"):
        register("x", learners=("robot",))


def test_methods_are_offered_to_their_learners_only():
    assert names("exact")[0] == names("neural")[0] == "pmd-pd"
    assert {"npg", "pg", "npg-entropy", "pg-entropy"} <= set(names("exact"))
    assert not {"npg", "pg", "npg-entropy", "pg-entropy"} & set(names("sampled") + names("neural"))


def test_naming_a_step_asks_for_fixed_steps():
    def rule(**given):
        return type(choose("pmd-pd", given, "exact", TabularSettings, 1).rule)

    assert rule() is GrowingPMDPD
    assert rule(initial_policy=[[1.0]]) is GrowingPMDPD
    assert rule(step=1.0) is rule(eta_dual=1.0) is rule(schedule="theory") is rule(steps="fixed") is PMDPD


@pytest.mark.parametrize(
    ("rule", "learner", "given", "message"),
    [
        (GrowingPMDPD(), "exact", {"step": 0.1}, "growing steps set 'step' themselves"),
        (GrowingPMDPD(), "exact", {"alpha": 0.1}, "growing steps set 'alpha' themselves"),
        (GrowingPMDPD(), "sampled", {}, "GrowingPMDPD does not run with the sampled learner, only with: exact"),
        (CPO(), "exact", {}, "CPO does not run with the exact learner, only with: neural"),
        ("cpo", "exact", {}, "'cpo' does not run with the exact learner, only with: neural"),
        (TrustRegionPMDPD(), "sampled", {}, "does not run with the sampled learner"),
    ],
)
def test_instances_are_checked_like_names(rule, learner, given, message):
    with pytest.raises(ValueError, match=message):
        choose(rule, given, learner, TabularSettings, 1)


def test_presets_fill_what_was_left_open_and_nothing_else():
    choice = choose("pmd-pd", {"dual": "fixed"}, "neural", NeuralSettings, 2)
    assert (choice.rule.eta_dual, choice.settings.inner_steps) == (5e-4, 2)
    given = choose("pmd-pd", {"eta_dual": 0.25, "inner_steps": 3, "radius": 0.5}, "neural", NeuralSettings, 2)
    assert (given.rule.eta_dual, given.settings.inner_steps, given.settings.radius) == (0.25, 3, 0.5)
    instance = choose(PMDPD(eta_dual=0.25), {}, "neural", NeuralSettings, 2)
    assert instance.rule.eta_dual == 0.25
    assert choose(PMDPD(), {}, "neural", NeuralSettings, 2).rule.eta_dual == 5e-4


def test_a_run_is_identified_by_all_that_was_asked():
    def identity(method, **given):
        return repr(choose(method, given, "exact", TabularSettings, 1).identity())

    runs = [
        identity("crpo"),
        identity("crpo", tolerance=0.1),
        identity("crpo", step=1.0),
        identity(CRPO(first=True)),
        identity(CRPO(tolerance=0.2)),
        identity("npg-pd"),
        identity("npg-pd", initial_multipliers=[0.5]),
        identity("npg-pd", initial_multipliers=[0.6]),
    ]
    assert len(set(runs)) == len(runs)
    assert identity("crpo", step=1.0) == identity("crpo", step=1.0, alpha=None)
