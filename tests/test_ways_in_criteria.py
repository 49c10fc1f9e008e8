"""Every way into a model takes every criterion, and the names that `CMDP` takes: against the model built by hand."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.model.ways_in import ModelOptions
from test_ways_in import assert_same

# Two steps lead to the end (state 2), by a fast and dear way or by a slow and cheap one; halves are exact in a log.
P = np.zeros((3, 2, 3))
P[0, 0, [0, 1]] = P[1, 0, [0, 2]] = 0.5
P[0, 1, 1] = P[1, 1, 2] = P[2, :, 2] = 1.0
PROFIT = np.array([[1.0, 2.5], [0.5, 2.0], [0.0, 0.0]])
WEAR = np.array([[0.25, 1.0], [0.5, 2.0], [0.0, 0.0]])

CRITERIA = {
    "discounted": {"gamma": 0.9},
    "total": {"gamma": 1},
    "horizon": {"horizon": 3},
    "discounted horizon": {"gamma": 0.9, "horizon": 3},
    "average": {"average": True},
    "per step": {"gamma": 0.9, "objective_per_step": True},
}


def limits(values, criterion):
    stage = {"stage": 1} if criterion == "horizon" else {}
    per_step = {"per_step": True} if criterion == "per step" else {}
    return [ck.AtMost(values, 1.1, name="wear", **stage, **per_step)]


def rows(twice=False):
    """State, action, next state and probability; with `twice` the rows of a log, two for each pair."""
    for s, a in np.ndindex(3, 2):
        after = np.flatnonzero(P[s, a]).tolist()
        for n in after * (2 // len(after)) if twice else after:
            yield s, a, n, P[s, a, n]


def table(twice=False):
    columns = dict(zip(("state", "action", "next_state", "probability"), zip(*rows(twice), strict=True), strict=True))
    at = np.array(columns["state"]), np.array(columns["action"])
    columns |= {"profit": PROFIT[at], "wear": WEAR[at]}
    if twice:
        del columns["probability"]
    return columns


def function(s, a):
    return [(P[s, a, n], n, PROFIT[s, a], WEAR[s, a]) for n in range(3)]


def arrays(s, a):
    row, n = np.nonzero(P[s, a])
    return row, P[s, a][row, n], n, PROFIT[s, a][row], [WEAR[s, a][row]]


def environment():
    moves = {s: {a: [] for a in range(2)} for s in range(3)}
    for s, a, n, p in rows():
        moves[s][a].append((p, n, PROFIT[s, a], n == 2))
    env = SimpleNamespace(P=moves, observation_space=SimpleNamespace(n=3), action_space=SimpleNamespace(n=2))
    env.unwrapped = env
    return env


def drn(tmp_path):
    pytest.importorskip("stormpy", reason="stormpy is not installed: models of Storm are NOT tested here")
    wear = ck.AtMost(WEAR, 1.0, name="wear")
    ck.CMDP(P, reward=PROFIT, constraints=[wear], gamma=0.9, initial=0, action_axis=1).to_drn(tmp_path / "model.drn")
    text = (tmp_path / "model.drn").read_text().replace("\nreward wear", "\nprofit wear")
    (tmp_path / "model.drn").write_text(text)
    return tmp_path / "model.drn"


def discrete_dp():
    markov = pytest.importorskip("quantecon.markov", reason="quantecon is not installed: DiscreteDP is NOT tested here")
    return markov.DiscreteDP(PROFIT, P, beta=0.9)


WAYS = {
    "table": lambda _, **o: ck.CMDP.from_table(table(), reward="profit", initial=0, **o),
    "samples": lambda _, **o: ck.CMDP.from_samples(table(twice=True), reward="profit", initial=0, **o),
    "function": lambda _, **o: ck.CMDP.from_function(function, 0, actions=[0, 1], **o),
    "vectorised": lambda _, **o: ck.CMDP.from_function(arrays, 0, actions=[0, 1], vectorised=True, **o),
    "gymnasium": lambda _, **o: ck.CMDP.from_gymnasium(
        environment(), cost={"wear": lambda s, a, n, r, ended: WEAR[s, a]}, initial=0, **o
    ),
    "storm": lambda path, **o: ck.CMDP.from_storm(drn(path), reward="profit", **o),
    "matrices": lambda _, **o: ck.CMDP.from_matrices(P.transpose(1, 0, 2), reward=PROFIT, initial=0, **o),
    "quantecon": lambda _, **o: ck.CMDP.from_quantecon(discrete_dp(), initial=0, **o),
}
TABLES = ("matrices", "quantecon")
"""Ways in that take arrays of values, not names."""


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_takes_every_criterion(way, criterion, tmp_path):
    options = CRITERIA[criterion]
    by_hand = ck.CMDP(
        P,
        reward=PROFIT,
        constraints=limits(WEAR, criterion),
        initial=0,
        objective_name="money",
        action_labels=(0, 1) if way in ("function", "vectorised") else ("0", "1") if way == "storm" else None,
        action_axis=1,
        **options,
    )
    values = WEAR if way in TABLES else "wear"
    quantecon_horizon = way == "quantecon" and criterion == "horizon"  # would be discounted by beta
    more = {"gamma": 1} if quantecon_horizon else {}
    made = WAYS[way](tmp_path, constraints=limits(values, criterion), objective_name="money", **options, **more)
    assert_same(made, by_hand)
    for name in ("criterion", "horizon", "objective_name", "objective_per_step", "value_name"):
        assert getattr(made, name) == getattr(by_hand, name), name
    assert [c.stage for c in made.constraints] == [c.stage for c in by_hand.constraints]


def test_totals_from_a_table_are_those_of_the_closed_form():
    """In state 0 a way earns 2.5, or 2 before state 1 is reached; in 1 it earns 2, or 0.5 and half the time returns."""
    best = ck.solve(ck.CMDP.from_table(table(), reward="profit", initial=0, gamma=1))
    onwards = [first + 2.0 for first in (2.5, 2.0)]
    returning = [(first + 0.5) / 0.5 for first in (2.5, 2.0)]  # x = first + 0.5 + x / 2
    assert best.objective == pytest.approx(max(onwards + returning), abs=1e-6)


def test_quantecon_keeps_its_discount_factor():
    assert WAYS["quantecon"](None).gamma == 0.9
    assert WAYS["quantecon"](None, horizon=3).gamma == 0.9
    assert WAYS["quantecon"](None, average=True).criterion == "average"


@pytest.mark.parametrize("way", ["table", "samples", "storm"])
def test_an_objective_is_called_by_its_column(way, tmp_path):
    assert WAYS[way](tmp_path, gamma=0.9).objective_name == "profit"


def test_plain_and_given_names_of_an_objective():
    plain = {**table(), "reward": table()["profit"]}
    assert ck.CMDP.from_table(plain, gamma=0.9).objective_name is None
    assert ck.CMDP.from_table(plain, cost="profit", gamma=0.9, objective_name="price").objective_name == "price"


def public_ways():
    return [name for name in dir(ck.CMDP) if name.startswith("from_")]


def test_a_new_option_of_the_model_reaches_all_ways_in():
    """Every keyword of `CMDP` is an option of all ways in, or one that they state in their own way."""
    own = {"transitions", "reward", "cost", "initial", "available", "state_labels", "action_labels", "action_axis"}
    constructor = inspect.signature(ck.CMDP).parameters
    assert set(ModelOptions.__annotations__) == set(constructor) - own
    assert len(public_ways()) == 7
    for name in public_ways():
        shown = inspect.signature(getattr(ck.CMDP, name)).parameters
        for option in ModelOptions.__annotations__:
            assert shown[option].default == constructor[option].default
        assert not [p for p in shown.values() if p.kind is p.VAR_KEYWORD], "help() lists every argument"


@pytest.mark.parametrize("name", public_ways())
def test_wrong_options_are_refused_before_anything_is_read(name):
    way = getattr(ck.CMDP, name)
    more = {"initial": 0, "actions": [0]} if name == "from_function" else {}
    source = SimpleNamespace(R=0, Q=0, beta=0.9) if name == "from_quantecon" else object()
    with pytest.raises(TypeError, match=rf"{name}\(\) has no argument 'gama'; did you mean 'gamma'\?"):
        way(source, gama=0.9, **more)
    if name != "from_quantecon":
        with pytest.raises(TypeError, match="gamma is needed"):
            way(source, **more)
    with pytest.raises(ValueError, match="a long-run average has no horizon"):
        way(source, average=True, horizon=3, **more)
    with pytest.raises(TypeError, match="constraints must be a list"):
        way(source, gamma=0.5, constraints=ck.AtMost("wear", 1.0), **more)
