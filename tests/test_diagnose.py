"""Diagnoses: smallest conflicts against all subsets by LP, relaxations against the LP, and hand-built models."""

import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.exact.conflict import Relaxation, rounded_outwards
from cmdpkit.run import explained
from models import lp_optimum, random_model


def is_feasible(cmdp, keep):
    try:
        lp_optimum(cmdp.with_limits({name: None for name in cmdp.names if name not in keep}))
    except AssertionError:
        return False
    return True


def conflicting(seed):
    """A random model whose limits are moved inwards until they cannot be met together."""
    cmdp = random_model(seed, constraints=4)
    margin = max(0.0, ck.slater_margin(cmdp))
    return cmdp.tightened(1.3 * margin + 0.05 * float(cmdp.spans[1:].min()))


@pytest.mark.parametrize("seed", [s for s in range(26) if s not in (3, 11)])  # those have a single action
def test_conflicts_are_smallest_and_relaxations_exact(seed):
    cmdp = conflicting(seed)
    found = ck.diagnose(cmdp)
    assert found.feasible is False
    assert found.irreducible
    assert not is_feasible(cmdp, found.conflict)
    for fewer in combinations(found.conflict, len(found.conflict) - 1):
        assert is_feasible(cmdp, fewer), fewer
    np.testing.assert_array_equal(found.weights > 0.0, [name in found.conflict for name in cmdp.names])
    for i, name in enumerate(cmdp.names):
        others = [other for other in cmdp.names if other != name]
        value = found.relaxations[name]
        assert (value is not None) == is_feasible(cmdp, others), name
        if value is not None:
            c = cmdp.constraints[i]
            alone = cmdp.with_limits({name: None})
            kind = "reward" if c.sign < 0 else "cost"
            unit = 1.0 - cmdp.gamma if c.per_step else 1.0
            exact = lp_optimum(alone.with_objective(**{kind: unit * np.asarray(c.values)}))[0]
            slack = 1e-6 * max(1.0, abs(exact))
            assert c.sign * value.proved - slack <= c.sign * exact <= c.sign * value.attained + slack
            assert c.sign * (value.attained - value.proved) <= 2.0 * slack
            assert is_feasible(cmdp.with_limits({name: value.attained + c.sign * slack}), cmdp.names)


def one_state(*limits):
    return ck.CMDP(np.ones((1, 3, 1)), reward=[[1.0, 0.0, 0.0]], constraints=limits, gamma=0.5)


POWER = ck.AtMost([[1.0, 0.0, 0.6]], 0.5, name="power")
DELAY = ck.AtMost([[0.0, 1.0, 0.6]], 0.5, name="delay")
EASY = ck.AtMost([[1.0, 1.0, 1.0]], 3.0, name="easy")
HOPELESS = ck.AtMost([[1.0, 1.0, 1.0]], 1.0, name="hopeless")


def test_two_limits_that_conflict():
    """p + d ≥ 2 for every policy, as the sums are at least those of the first two actions, and 2 in all."""
    found = ck.diagnose(one_state(POWER, DELAY, EASY))
    assert set(found.conflict) == {"power", "delay"}
    for name in ("power", "delay"):
        assert found.relaxations[name].attained == pytest.approx(1.5, abs=1e-6)
    assert found.relaxations["easy"] is None
    np.testing.assert_allclose(found.misses, [0.5, 0.5, 0.0], atol=1e-6)
    np.testing.assert_allclose(found.margin, -0.5, atol=1e-6)
    assert "cannot be met together" in str(found)
    assert "<= 1.5" in found.table()
    assert "does not help alone" in found.table()


def test_units_say_which_miss_is_worse():
    """With power in units of 3: p + d = 2 and (p − ½)/3 = d − ½, so that p = 1.25 and d = 0.75."""
    found = ck.diagnose(one_state(POWER, DELAY), units={"power": 3.0})
    np.testing.assert_allclose(found.misses, [0.75, 0.25], atol=1e-6)
    np.testing.assert_allclose(found.margin, -0.25, atol=1e-6)
    big = ck.AtMost(100.0 * np.asarray(DELAY.values), 50.0, name="delay")
    relative = ck.diagnose(one_state(POWER, big), units="relative")  # units 1 and 50
    p, d = relative.values[0], relative.values[1] / 100.0
    assert p - 0.5 == pytest.approx((100.0 * d - 50.0) / 50.0, abs=1e-6)


def test_two_conflicts_need_two_limits():
    found = ck.diagnose(one_state(POWER, DELAY, HOPELESS))
    assert found.conflict == ("hopeless",)
    assert set(found.relaxations.values()) == {None}
    assert "more than one has to be relaxed" in str(found)
    message = ck.solve(one_state(POWER, DELAY, HOPELESS)).message
    assert "No single limit helps" in message


def test_solve_names_limits_that_help():
    """Proof weight on both, but only relaxing one of them helps: the other conflicts with a third as well."""
    result = ck.solve(one_state(POWER, DELAY, EASY))
    assert result.status is ck.Status.INFEASIBLE
    assert "Relax 'power' to 1.5 or 'delay' to 1.5." in result.message
    np.testing.assert_array_equal(result.certificate.infeasibility > 0.0, [True, True, False])
    third = ck.AtMost([[1.0, 0.0, 0.6]], 0.7, name="third")  # conflicts with delay, as power does
    message = ck.solve(one_state(POWER, DELAY, third)).message
    assert "Relax 'delay' to 1.5." in message


def test_a_feasible_model_has_a_margin_and_binding_limits():
    cmdp = ck.problems.paper()
    found = ck.diagnose(cmdp)
    assert found.feasible is True
    assert found.conflict == ()
    np.testing.assert_allclose(found.margin, 1.525027, atol=1e-6)
    assert found.binding == pytest.approx({"utility": 0.24267}, abs=1e-5)
    assert "FEASIBLE" in str(found)
    assert found.to_dict()["feasible"] is True
    assert ck.diagnose(cmdp.with_limits(utility=None)).feasible is True


def test_a_time_limit_decides_nothing_false():
    found = ck.diagnose(one_state(POWER, DELAY), time_limit=0.0)
    assert found.feasible is None
    assert found.relaxations == {}


@pytest.mark.parametrize(
    ("units", "error", "message"),
    [
        ({"weight": 1.0}, ValueError, "no constraint 'weight'; the model has 'power', 'delay'"),
        ({"power": 0.0}, ValueError, "must be positive"),
        ({"power": "1"}, TypeError, "the unit of 'power' must be a number"),
        ("absolute", TypeError, "units must be a mapping"),
    ],
)
def test_bad_units_are_refused(units, error, message):
    with pytest.raises(error, match=message):
        ck.diagnose(one_state(POWER, DELAY), units)


@pytest.mark.parametrize(
    ("proved", "attained", "sign", "text"),
    [
        (1.5, 1.5 + 1e-11, 1.0, "1.5"),
        (1.5 + 5e-12, 1.5 + 1e-11, 1.0, "1.50001"),  # 1.5 is proved impossible
        (1.23456781, 1.23456789, 1.0, "1.23457"),
        (1.23456781, 1.23456789, -1.0, "1.23456"),
        (-2.5000001, -2.5, -1.0, "-2.5"),
        (0.0, 0.0, 1.0, "0"),
        (-2e-16, 3.13971e-14, 1.0, "0"),
        (-1e-12, -4.2e-10, -1.0, "-4.2e-10"),  # at least 0 is proved impossible
        (-1e-17, 4.2e-10, 1.0, "0"),
        (3.1e-14, 3.13971e-14, 1.0, "4e-14"),  # 0 is proved impossible
        (-3.1e-14, -3.13971e-14, -1.0, "-4e-14"),
    ],
)
def test_printed_limits_are_not_tighter_than_attained_ones(proved, attained, sign, text):
    assert rounded_outwards(Relaxation(proved, attained), sign) == text


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_limits_near_the_smallest_double_are_printed(sign):
    """The unit of their sixth digit is zero."""
    for k in range(1, 400):
        value = k * 5e-324
        text = rounded_outwards(Relaxation(sign, value), sign)  # the nearest number will not do
        assert sign * float(text) >= sign * value


def test_the_examples_of_the_page_run():
    text = (Path(__file__).parent.parent / "docs" / "modelling.md").read_text()
    sections = text[text.index("## Trade-offs") :]
    names = {}
    for block in re.findall(r"```python\n(.*?)```", sections, flags=re.S):
        exec(block, names)
    assert names["found"].feasible is False
    assert names["curve"].complete
    assert names["surface"].complete
    assert names["again"].objective > names["result"].objective


def test_what_is_proved_is_shown_where_no_relaxation_was_found():
    cmdp = ck.CMDP(np.ones((1, 1, 1)), cost=[[1.0]], constraints=[ck.AtMost([[2.0]], 1.0, name="use")], gamma=0.0)
    found = replace(ck.diagnose(cmdp), relaxations={"use": Relaxation(1.5, np.inf)})
    assert "1.5 or more" in str(found)
    assert "inf" not in str(found).replace("INFEASIBLE", "")
    touching = replace(ck.diagnose(cmdp.with_limits(use=2.0)), margin=np.array([-2e-9, 3e-9]))
    assert "with a margin of 0\n" in str(touching)


def test_a_limit_that_may_help_is_not_said_to_be_of_no_help(monkeypatch):
    cmdp = ck.CMDP(np.ones((1, 1, 1)), cost=[[1.0]], constraints=[ck.AtMost([[2.0]], 1.0, name="use")], gamma=0.0)
    monkeypatch.setattr(explained, "relaxation", lambda *arguments, **settings: Relaxation(1.5, np.inf))
    message = ck.solve(cmdp).message
    assert "No single limit helps" not in message
    assert "cmdpkit.diagnose(model)" in message
