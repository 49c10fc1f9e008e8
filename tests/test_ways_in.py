"""Every way into a model, against the same model built by hand, and what each says about bad input."""

import csv
import sys
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp

import cmdpkit as ck
from cmdpkit.model import encoding, reading
from cmdpkit.model.numbering import Numbering, _Hashed

# A machine: in "good" it can run or rest, in "bad" only be repaired.
ROWS = [
    # state, action, next_state, probability, reward, wear
    ("good", "run", "good", 0.9, 1.0, 1.0),
    ("good", "run", "bad", 0.1, 0.5, 3.0),
    ("good", "rest", "good", 1.0, 0.1, 0.0),
    ("bad", "repair", "good", 1.0, -2.0, 0.25),
]
NAMES = ("state", "action", "next_state", "probability", "reward", "wear")
WEAR = ck.AtMost("wear", 4.0)


def columns(rows=ROWS):
    return {name: list(column) for name, column in zip(NAMES, zip(*rows, strict=True), strict=True)}


def by_hand():
    nothing = [0.0, 0.0]
    return ck.CMDP(
        [[[0.9, 0.1], [1.0, 0.0], nothing], [nothing, nothing, [1.0, 0.0]]],
        reward=[[0.9 * 1.0 + 0.1 * 0.5, 0.1, 0.0], [0.0, 0.0, -2.0]],
        constraints=[ck.AtMost([[0.9 * 1.0 + 0.1 * 3.0, 0.0, 0.0], [0.0, 0.0, 0.25]], 4.0, name="wear")],
        gamma=0.9,
        initial=0,
        available=[[True, True, False], [False, False, True]],
        state_labels=["good", "bad"],
        action_labels=["run", "rest", "repair"],
    )


def dense(cmdp):
    return cmdp.transitions.toarray() if sp.issparse(cmdp.transitions) else cmdp.transitions


def assert_same(one, other, rounding=1e-15):
    """The same states, actions, numbers and limits, in the same order; expected values up to rounding."""
    assert one.pairs.same(other.pairs) or (one.pairs.is_full and other.pairs.is_full)
    assert (one.states, one.actions, one.names, one.gamma) == (other.states, other.actions, other.names, other.gamma)
    assert (one.state_labels, one.action_labels) == (other.state_labels, other.action_labels)
    assert one.maximise == other.maximise
    np.testing.assert_array_equal(one.initial, other.initial)
    np.testing.assert_array_equal(one.limits, other.limits)
    np.testing.assert_allclose(dense(one), dense(other), rtol=0, atol=rounding)
    np.testing.assert_allclose(one.costs, other.costs, rtol=rounding, atol=rounding)


def from_table(source, **changes):
    settings = {"constraints": [WEAR], "gamma": 0.9, "initial": "good", **changes}
    return ck.CMDP.from_table(source, **settings)


def written(tmp_path, rows=ROWS, names=NAMES, name="model.csv"):
    path = tmp_path / name
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    return path


# -- tables ------------------------------------------------------------------------------------------------------------


SOURCES = {
    "dict": lambda folder: columns(),
    "arrays": lambda folder: {name: np.array(column) for name, column in columns().items()},
    "pandas": lambda folder: pd.DataFrame(columns()),
    "pandas, categories": lambda folder: pd.DataFrame(columns()).astype(dict.fromkeys(NAMES[:3], "category")),
    "pandas, index": lambda folder: pd.DataFrame(columns(), index=[7, 5, 3, 1]),
    "polars": lambda folder: pl.DataFrame(columns()),
    "csv": written,
    "csv as text": lambda folder: str(written(folder)),
    "other order": lambda folder: columns([ROWS[i] for i in (2, 0, 3, 1)]),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_tables_of_every_kind_give_the_model_built_by_hand(tmp_path, kind):
    labels = ["run", "rest", "repair"] if kind == "other order" else None
    assert_same(from_table(SOURCES[kind](tmp_path), action_labels=labels), by_hand())


def test_the_optimum_of_a_table_is_that_of_the_model_built_by_hand():
    ours, theirs = ck.solve(from_table(columns())), ck.solve(by_hand(), "lp")
    assert ours.status is ck.Status.OPTIMAL
    assert ours.objective == pytest.approx(theirs.objective, abs=1e-6)
    assert ours.constraint_values[0] == pytest.approx(4.0, abs=1e-5)  # the limit binds


@pytest.mark.parametrize("large", [False, True])
def test_both_readers_of_csv_files_agree(tmp_path, monkeypatch, large):
    monkeypatch.setattr(reading, "SMALL_FILE", 0 if large else 1 << 40)
    monkeypatch.setattr(encoding, "LONG_COLUMN", 0 if large else 1 << 40)
    assert_same(from_table(written(tmp_path)), by_hand())
    # Words that other readers take for numbers or for missing entries; a byte order mark; spaces after commas
    lines = [
        "state, action, next_state, probability, reward",
        "NA, 1, 007, 1.0, 1",
        "007, 1, nan, 1, 2",
        "nan, 1, NA, 1, 3",
    ]
    text = "\ufeff" + "\n".join(lines) + "\n\n"
    (tmp_path / "odd.csv").write_text(text, encoding="utf-8")
    odd = ck.CMDP.from_table(tmp_path / "odd.csv", gamma=0.9)
    assert odd.state_labels == ("NA", "007", "nan")
    assert odd.action_labels == (1,)
    numbers = [(3, "a", 1, 1.0, 0.0), (1, "a", 3, 0.5, 0.0), (1, "a", -2, 0.5, 0.0), (-2, "a", -2, 1.0, 0.0)]
    cmdp = ck.CMDP.from_table(written(tmp_path, numbers, NAMES[:5]), gamma=0.9, initial=3)
    assert cmdp.state_labels == (-2, 1, 3)
    np.testing.assert_array_equal(cmdp.initial, [0.0, 0.0, 1.0])
    mixed = [(0, "a", "end", 1.0, 0.0), ("end", "a", 0, 1.0, 0.0)]
    assert ck.CMDP.from_table(written(tmp_path, mixed, NAMES[:5]), gamma=0.9).state_labels == ("0", "end")
    # The same number, but different labels, which must not become one state
    for one, other in (("01", "1"), ("+1", "1"), ("00", "0")):
        twins = [(one, "a", other, 1.0, 0.0), (other, "b", one, 1.0, 0.0)]
        cmdp = ck.CMDP.from_table(written(tmp_path, twins, NAMES[:5]), gamma=0.9)
        assert cmdp.state_labels == (one, other)
    longer = [(*ROWS[0], 7.0), *ROWS[1:]]
    with pytest.raises(ValueError, match=r"line 2 has 7 entries|Length of header .* does not match length of data"):
        from_table(written(tmp_path, longer))


def test_plain_csv_needs_no_pandas(tmp_path, monkeypatch):
    path = written(tmp_path)
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(reading, "SMALL_FILE", 0)
    cmdp = from_table(path)
    assert_same(cmdp, by_hand())
    with pytest.raises(ImportError, match=r"to_frame needs pandas.*to_table works without"):
        cmdp.to_frame()


def test_whole_numbers_from_zero_are_no_labels():
    rows = [(1, 1, 0, 1.0, 0.0, 0.0), (0, 0, 1, 1.0, 0.0, 0.0), (0, 1, 1, 1.0, 0.0, 0.0)]
    cmdp = from_table(columns(rows), initial=1)
    assert cmdp.state_labels is cmdp.action_labels is None
    np.testing.assert_array_equal(cmdp.pairs.mask, [[True, True], [False, True]])
    np.testing.assert_array_equal(cmdp.initial, [0.0, 1.0])
    far = [(10**15, 0, -5, 1.0, 0.0, 0.0), (-5, 0, 10**15, 1.0, 0.0, 0.0)]
    assert from_table(columns(far), initial=-5).state_labels == (-5, 10**15)


def test_labels_can_be_any_hashable_and_their_order_given():
    rows = [((0, 1), "a", (1, 0), 1.0, 0.0, 0.0), ((1, 0), "b", (0, 1), 1.0, 1.0, 0.0)]
    cmdp = from_table(columns(rows), initial=(0, 1), action_labels=["b", "a", "never"])
    assert cmdp.state_labels == ((0, 1), (1, 0))
    assert cmdp.action_labels == ("b", "a", "never")
    np.testing.assert_array_equal(cmdp.pairs.mask, [[False, True, False], [True, False, False]])
    mixed = from_table(columns([(0, "a", "end", 1.0, 0.0, 0.0), ("end", "a", 0, 1.0, 0.0, 0.0)]), initial="end")
    assert mixed.state_labels == (0, "end")
    np.testing.assert_array_equal(from_table(columns(), initial={"good": 0.25, "bad": 0.75}).initial, [0.25, 0.75])
    np.testing.assert_array_equal(from_table(columns(), initial=[0.25, 0.75]).initial, [0.25, 0.75])


def test_objective_and_columns_by_name():
    table = columns()
    renamed = {("to" if name == "next_state" else name): column for name, column in table.items()}
    assert_same(from_table(renamed, columns={"next_state": "to"}), by_hand())
    least = ck.CMDP.from_table(table, cost="wear", constraints=[ck.AtLeast("reward", 1.0)], gamma=0.9, initial="good")
    assert not least.maximise
    assert least.names == ["reward"]
    np.testing.assert_allclose(least.objective, [1.2, 0.0, 0.25])
    both = {**table, "cost": table["wear"]}
    assert ck.CMDP.from_table(both, constraints=[ck.AtMost("cost", 1.0)], gamma=0.9).maximise
    with pytest.raises(ValueError, match=r"both columns, reward and cost; say which column is the objective"):
        ck.CMDP.from_table(both, gamma=0.9)
    with pytest.raises(ValueError, match=r"no column reward or cost; say which"):
        ck.CMDP.from_table({n: table[n] for n in NAMES[:4]}, gamma=0.9)
    with pytest.raises(ValueError, match=r"give one of the two"):
        ck.CMDP.from_table(table, reward="reward", cost="wear", gamma=0.9)
    per_pair = from_table(table, constraints=[ck.AtMost([1.2, 0.0, 0.25], 4.0, name="wear")])
    assert_same(per_pair, by_hand())


def test_source_is_not_changed():
    p = np.array([0.1, 0.9, 1.0])
    table = {"state": [0, 0, 1], "action": [0, 0, 0], "next_state": [1, 0, 0], "probability": p, "reward": p}
    ck.CMDP.from_table(table, gamma=0.5)
    np.testing.assert_array_equal(p, [0.1, 0.9, 1.0])


def changed(row, **entries):
    rows = [list(r) for r in ROWS]
    for name, value in entries.items():
        rows[row][NAMES.index(name)] = value
    return rows


BAD_TABLES = {
    "sum": (
        changed(1, probability=0.2),
        r"lines? 2, 3: state 'good', action 'run': the probabilities sum to 1.1, not 1 \(1 of 3 pairs are off\); list",
    ),
    "negative": (
        changed(1, probability=-0.1),
        r"line 3: state 'good', action 'run': the probability of state 'bad' is -0.1 \(1 such entry\)",
    ),
    "NaN": (changed(3, probability="nan"), r"line 5: state 'bad', action 'repair': the probability of .* is nan"),
    "infinite": (changed(2, reward="inf"), r"line 4: state 'good', action 'rest': reward is inf"),
    "word": (changed(2, wear="much"), r"line 4: wear is 'much', which is not a number"),
    "empty number": (changed(2, wear=""), r"line 4: wear is '', which is not a number"),
    "duplicate": (
        changed(1, next_state="good"),
        r"lines 2, 3: state 'good', action 'run', next state 'good' is listed more than once",
    ),
    "no label": (changed(1, next_state=""), r"line 3: next_state is missing"),
    "never left": (
        [*changed(1, next_state="broken"), ("bad", "rest", "bad", 1.0, 0.0, 0.0)],
        r"line 3: no action leads out of state 'broken'; if the process ends there, say so with absorbing=True",
    ),
}


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", BAD_TABLES)
def test_bad_tables_are_refused_with_line_state_and_action(tmp_path, monkeypatch, name, large):
    monkeypatch.setattr(reading, "SMALL_FILE", 0 if large else 1 << 40)
    rows, message = BAD_TABLES[name]
    path = written(tmp_path, rows)
    with pytest.raises(ValueError, match=message) as error:
        from_table(path)
    assert str(error.value).startswith("model.csv, ")


def test_rows_of_frames_are_counted_from_zero():
    with pytest.raises(ValueError, match=r"^rows 0, 1: state 'good', action 'run': the probabilities sum to 1\.1"):
        from_table(pd.DataFrame(columns(changed(1, probability=0.2))))
    with pytest.raises(ValueError, match=r"^row 1: next_state is missing"):
        from_table(pd.DataFrame(columns(changed(1, next_state=None))))
    with pytest.raises(ValueError, match=r"^row 1: next_state is missing"):
        from_table(pl.DataFrame(columns(changed(1, next_state=None))))
    with pytest.raises(ValueError, match=r"^row 3: state 'bad', action 'repair': .* is nan"):
        from_table(pl.DataFrame(columns(changed(3, probability=None)), strict=False))
    numbers = pd.DataFrame({**columns(), "state": [0.0, np.nan, 0.0, 1.0], "next_state": [0.0, 1.0, 0.0, 0.0]})
    with pytest.raises(ValueError, match=r"^row 1: state is missing"):
        from_table(numbers, initial=0)


def test_unknown_names_are_refused_with_a_suggestion():
    with pytest.raises(ValueError, match=r"initial names the state 'god'; did you mean 'good'\?"):
        from_table(columns(), initial="god")
    with pytest.raises(ValueError, match=r"initial names the state 3; the states are 'good', 'bad'"):
        from_table(columns(), initial=3)
    with pytest.raises(ValueError, match=r"no column 'waer'; did you mean 'wear'\?"):
        from_table(columns(), constraints=[ck.AtMost("waer", 1.0)])
    with pytest.raises(ValueError, match=r"row 3: state is 'bad', which is not a given label"):
        from_table(columns(), state_labels=["good", "broken"])
    with pytest.raises(ValueError, match=r"row 2: action is 'rest', which is not a given label"):
        from_table(columns(), action_labels=["run", "repair"])
    with pytest.raises(ValueError, match=r"absorbing names the state 'ugly'"):
        from_table(columns(), absorbing=["ugly"])
    with pytest.raises(ValueError, match=r"state 'bad' is absorbing, but has transitions of its own"):
        from_table(columns(), absorbing=["bad"])
    with pytest.raises(ValueError, match=r"the table has no column 'probabilty'"):
        from_table(columns(), columns={"probability": "probabilty"})
    with pytest.raises(TypeError, match=r"constraints must be a list"):
        from_table(columns(), constraints=WEAR)


def test_a_table_needs_its_probabilities():
    table = columns()
    del table["probability"]
    with pytest.raises(ValueError, match=r"no column 'probability'"):
        from_table(table)
    with pytest.raises(ValueError, match=r"did you mean 'prob'\?"):
        from_table({**table, "profit": table["wear"], "prob": columns()["probability"]})


def test_malformed_sources_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such file"):
        from_table(tmp_path / "none.csv")
    with pytest.raises(TypeError, match=r"a table is a path, a pandas or polars frame, or a dict of columns, not list"):
        from_table([1, 2])
    with pytest.raises(ValueError, match=r"same length"):
        from_table({**columns(), "wear": [1.0]})
    for column in (1.0, "abcd", None):
        with pytest.raises(TypeError, match=r"column 'wear' is .*; a column is a list or an array"):
            from_table({**columns(), "wear": column})
    with pytest.raises(TypeError, match=r"a LazyFrame has no rows yet; pass frame.collect\(\)"):
        from_table(pl.DataFrame(columns()).lazy())
    with pytest.raises(ValueError, match=r"more than one column 'wear'"):
        from_table(written(tmp_path, [(*row, 1.0) for row in ROWS], (*NAMES, "wear")))
    with pytest.raises(ValueError, match=r"line 3 has 5 entries, the header has 6"):
        from_table(written(tmp_path, [ROWS[0], ROWS[1][:-1]]))
    with pytest.raises(ValueError, match=r"model.csv has no rows"):
        from_table(written(tmp_path, []))
    with pytest.raises(ValueError, match=r"no rows"):
        from_table({name: [] for name in NAMES})
    (tmp_path / "latin.csv").write_bytes("state,action\nm\xfcde,1\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"not UTF-8"):
        from_table(tmp_path / "latin.csv")
    with pytest.raises(TypeError, match=r"hashable"):
        from_table(columns([([1], "a", [1], 1.0, 0.0, 0.0)]))


def test_absorbing_states_stay_at_no_cost():
    rows = [*ROWS[:1], ("good", "run", "broken", 0.1, 0.5, 3.0)]
    for absorbing in (True, ["broken"]):
        cmdp = from_table(columns(rows), absorbing=absorbing)
        assert cmdp.state_labels == ("good", "broken")
        np.testing.assert_array_equal(dense(cmdp), [[0.9, 0.1], [0.0, 1.0]])
        assert cmdp.objective.ravel()[1] == 0.0 == cmdp.costs[1, 1]


def test_unreachable_states_are_reported_kept_dropped_or_refused():
    rows = [*ROWS, ("Good", "run", "good", 1.0, 7.0, 0.0)]
    text = r"1 of 3 states cannot be reached from the initial states: 'Good'; check their labels"
    with pytest.warns(UserWarning, match=text):
        assert from_table(columns(rows)).states == 3
    with pytest.raises(ValueError, match=text):
        from_table(columns(rows), unreachable="refuse")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert from_table(columns(rows), unreachable="keep").states == 3
        assert from_table(columns(rows), initial=None).states == 3  # every state is an initial state
        assert_same(from_table(columns(rows), unreachable="drop"), by_hand())
    with pytest.raises(ValueError, match=r"unreachable must be"):
        from_table(columns(), unreachable="ignore")


def test_the_warning_points_at_the_caller():
    rows = [*ROWS, ("x", "run", "x", 1.0, 0.0, 0.0)]
    with pytest.warns(UserWarning, match="cannot be reached") as caught:
        ck.CMDP.from_table(columns(rows), gamma=0.9, initial="good")
    assert caught[0].filename == __file__


# -- the way out -------------------------------------------------------------------------------------------------------


def random_model(seed=0, states=7, actions=3, labels=True):
    rng = np.random.default_rng(seed)
    mask = rng.random((states, actions)) < 0.6
    mask[np.arange(states), rng.integers(actions, size=states)] = True
    shape = (states, actions, states)
    p = rng.random(shape) * (rng.random(shape) < 0.5) + np.eye(states)[:, None] / 9
    return ck.CMDP(
        p / p.sum(axis=2, keepdims=True),
        cost=rng.normal(size=(states, actions)),
        constraints=[
            ck.AtMost(rng.random((states, actions)), 3.0, name="heat"),
            ck.AtLeast(rng.random(states), 0.1, name="x"),
        ],
        gamma=0.95,
        initial=2,
        available=mask,
        state_labels=[f"s{i}" for i in range(states)] if labels else None,
        action_labels=["c", "a", "b"] if labels else None,
    )


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("large", [False, True])
def test_tables_are_written_and_read_exactly(tmp_path, monkeypatch, labels, large):
    monkeypatch.setattr(reading, "SMALL_FILE", 0 if large else 1 << 40)
    model = random_model(labels=labels)
    settings = {
        "constraints": [ck.AtMost("heat", 3.0), ck.AtLeast("x", 0.1)],
        "gamma": 0.95,
        "initial": "s2" if labels else 2,
        "action_labels": model.action_labels,
        "unreachable": "keep",
    }
    model.to_table(tmp_path / "model.csv")
    for source in (tmp_path / "model.csv", model.to_table(), model.to_frame(), pl.DataFrame(model.to_table())):
        back = ck.CMDP.from_table(source, **settings)
        np.testing.assert_array_equal(back.costs, model.costs)
        assert_same(back, model, rounding=0.0)


def test_a_column_cannot_have_two_meanings():
    model = ck.CMDP(np.ones((1, 2, 1)), reward=[[0, 1]], constraints=[ck.AtMost([[0, 1]], 1, name="state")], gamma=0.5)
    with pytest.raises(ValueError, match=r"the limit 'state' has the name of another column"):
        model.to_table()


# -- logs --------------------------------------------------------------------------------------------------------------


def test_samples_give_frequencies_means_and_counts():
    log = columns([(s, a, n, 0.0, r, w) for s, a, n, _, r, w in [ROWS[0], ROWS[0], ROWS[1], *ROWS[2:]]])
    del log["probability"]
    log["reward"][1] = 4.0
    cmdp = ck.CMDP.from_samples(log, constraints=[WEAR], gamma=0.9, initial="good")
    np.testing.assert_array_equal(dense(cmdp), [[2 / 3, 1 / 3], [1.0, 0.0], [1.0, 0.0]])
    np.testing.assert_array_equal(cmdp.counts, [3, 1, 1])
    np.testing.assert_allclose(cmdp.objective, [(1.0 + 4.0 + 0.5) / 3, 0.1, -2.0], rtol=1e-15)
    np.testing.assert_allclose(cmdp.constraints[0].values, [5 / 3, 0.0, 0.25], rtol=1e-15)
    np.testing.assert_array_equal(cmdp.pairs.mask, by_hand().pairs.mask)  # what was never tried is not available
    assert by_hand().counts is None
    with pytest.raises(ValueError, match="read-only"):
        cmdp.counts[0] = 5


def test_samples_approach_the_model():
    truth = random_model(3)
    rng = np.random.default_rng(5)
    pairs = rng.integers(truth.pairs.count, size=20_000)
    cumulative = np.cumsum(dense(truth), axis=1)
    following = (cumulative[pairs] < rng.random(pairs.size)[:, None]).sum(axis=1)
    log = {
        "state": truth.pairs.state[pairs],
        "action": truth.pairs.action[pairs],
        "next_state": following,
        "cost": truth.objective[pairs],
    }
    model = ck.CMDP.from_samples(log, gamma=0.95)
    np.testing.assert_array_equal(model.counts, np.bincount(pairs))
    np.testing.assert_array_equal(model.objective, truth.objective)  # means of equal numbers are exact
    np.testing.assert_allclose(dense(model), dense(truth), atol=5 * 0.5 / np.sqrt(model.counts.min()))
    assert np.abs(dense(model).sum(axis=1) - 1.0).max() < 1e-15


def test_logs_that_end_and_tables_are_told_apart():
    log = {"state": ["a", "b"], "action": ["x", "x"], "next_state": ["b", "end"], "reward": [0.0, 1.0]}
    with pytest.raises(ValueError, match=r"row 1: no action leads out of state 'end'.*absorbing=True"):
        ck.CMDP.from_samples(log, gamma=0.9)
    cmdp = ck.CMDP.from_samples(log, gamma=0.9, absorbing=True)
    np.testing.assert_array_equal(cmdp.counts.ravel(), [1, 1, 0])
    with pytest.raises(ValueError, match=r"a column 'probability'.*CMDP.from_table"):
        ck.CMDP.from_samples(columns(), gamma=0.9)


# -- functions ---------------------------------------------------------------------------------------------------------


def machine(state, action):
    return [(p, n, r, (w,)) for s, a, n, p, r, w in ROWS if (s, a) == (state, action)]


def machine_actions(state):
    return ["run", "rest"] if state == "good" else ["repair"]


def from_function(function=machine, initial="good", **changes):
    settings = {"actions": machine_actions, "constraints": [WEAR], "gamma": 0.9, **changes}
    return ck.CMDP.from_function(function, initial, **settings)


def test_functions_give_the_model_built_by_hand():
    assert_same(from_function(), by_hand())
    by_name = from_function(lambda s, a: [(p, n, r, {"other": 5.0, "wear": w}) for p, n, r, (w,) in machine(s, a)])
    assert_same(by_name, by_hand())
    assert_same(from_function(constraints=[ck.AtMost(None, 4.0, name="wear")]), by_hand())
    assert_same(from_function(lambda s, a: [(p, n, r, w) for p, n, r, (w,) in machine(s, a)]), by_hand())


def test_outcomes_with_the_same_next_state_are_added():
    cmdp = ck.CMDP.from_function(
        lambda s, a: [(0.25, 0, 1.0), (0.25, 0, 3.0), (0.5, 1, 5.0)], 0, actions=["a"], gamma=0.5
    )
    np.testing.assert_array_equal(dense(cmdp), [[0.5, 0.5], [0.5, 0.5]])
    np.testing.assert_allclose(cmdp.objective.ravel(), [3.5, 3.5])
    assert cmdp.state_labels is None
    assert not ck.CMDP.from_function(lambda s, a: [(1.0, 0, 1.0)], 0, actions=["a"], gamma=0.5, minimise=True).maximise


def test_whole_numbers_are_sorted_and_other_states_kept_as_found():
    def countdown(n, a):
        return [(1.0, max(n - 1, 0), float(n))]

    cmdp = ck.CMDP.from_function(countdown, {3: 0.5, 2: 0.5}, actions=["a"], gamma=0.5)
    assert cmdp.state_labels is None
    np.testing.assert_array_equal(cmdp.initial, [0.0, 0.0, 0.5, 0.5])
    np.testing.assert_array_equal(cmdp.objective.ravel(), [0.0, 1.0, 2.0, 3.0])
    words = ck.CMDP.from_function(lambda s, a: [(1.0, s[:-1] or "-", 0.0)], "abc", actions=["a"], gamma=0.5)
    assert words.state_labels == ("abc", "ab", "a", "-")


def test_exploration_says_what_it_found(capsys):
    seen = []
    cmdp = from_function(progress=lambda explored, found: seen.append((explored, found)))
    assert seen[-1] == (2, 2) == (cmdp.states, cmdp.states)
    from_function(progress=True)
    assert "explored 2 of 2 states found" in capsys.readouterr().err


BAD_FUNCTIONS = {
    "sum": (lambda s, a: [(0.5, s, 0.0, (0.0,))], r"state 'good', action 'run': the probabilities sum to 0.5.*return"),
    "nothing": (lambda s, a: [], r"function\('good', 'run'\) returned no outcome"),
    "None": (lambda s, a: None, r"function\('good', 'run'\) returned None; .*leave the action out by actions="),
    "short": (lambda s, a: [(1.0, s)], r"function\('good', 'run'\) returned \(1.0, 'good'\) as an outcome"),
    "costs": (lambda s, a: [(1.0, s, 0.0, (1.0, 2.0))], r"function\('good', 'run'\) returned .* as an outcome"),
    "cost name": (lambda s, a: [(1.0, s, 0.0, {"waer": 1.0})], r"function\('good', 'run'\) returned .*waer"),
    "word": (lambda s, a: [(1.0, s, "x", (0.0,))], r"function\('good', 'run'\) .*its reward is not a number"),
    "NaN": (lambda s, a: [(1.0, s, 0.0, (np.nan,))], r"state 'good', action 'run': wear is nan"),
    "list": (lambda s, a: [(1.0, [s], 0.0, (0.0,))], r"hashable next state"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FUNCTIONS)
def test_bad_functions_are_refused_with_state_and_action(name):
    function, message = BAD_FUNCTIONS[name]
    with pytest.raises(ValueError, match=message):
        from_function(function)


def test_bad_arguments_of_functions_are_refused():
    with pytest.raises(ValueError, match=r"more than max_states = 50 states"):
        from_function(lambda n, a: [(1.0, n + 1, 0.0, 0.0)], 0, actions=["a"], max_states=50)
    with pytest.raises(ValueError, match=r"lists the action 'run' more than once"):
        from_function(actions=lambda s: ["run", "run"] if s == "good" else ["repair"])
    with pytest.raises(ValueError, match=r"no action leads out of state 'bad'.*absorbing=True"):
        from_function(actions=lambda s: ["run"] if s == "good" else [])
    ended = from_function(actions=lambda s: ["run"] if s == "good" else [], absorbing=True)
    np.testing.assert_array_equal(dense(ended), [[0.9, 0.1], [0.0, 1.0]])
    with pytest.raises(TypeError, match=r"actions must be a list"):
        from_function(actions="run")
    with pytest.raises(ValueError, match=r"actions must differ"):
        from_function(actions=["run", "run"])
    with pytest.raises(TypeError, match=r"use a tuple in place of a list"):
        from_function(initial=[0, 1])
    with pytest.raises(ValueError, match=r"limit 1 needs the name of a cost"):
        from_function(constraints=[ck.AtMost([[1.0]], 1.0)])
    with pytest.raises(ValueError, match=r"let actions be a function of the state"):
        from_function(available=lambda s: True)
    with pytest.raises(ValueError, match=r"initial sums to 0.5"):
        from_function(initial={"good": 0.5})


# -- vectorised functions ----------------------------------------------------------------------------------------------

SIZE = 6


def queues(state, action):
    """Two queues; action 0 serves the first, action 1 the second, action 2 both (only if both are full)."""
    x, y = state
    served = (max(x - (action != 1), 0), max(y - (action != 0), 0))
    cost = float(x + y)
    return [
        (0.3, (min(x + 1, SIZE), y), cost, (float(action == 2), 1.0)),
        (0.2, (x, min(y + 1, SIZE)), cost, (float(action == 2), 1.0)),
        (0.5, served, cost + 1.0, (float(action == 2), 2.0)),
    ]


def queues_of_arrays(states, actions):
    x, y = states.T
    n, r = x.size, np.arange(x.size)
    served = np.stack([np.maximum(x - (actions != 1), 0), np.maximum(y - (actions != 0), 0)], axis=1)
    following = [
        np.stack([np.minimum(x + 1, SIZE), y], axis=1), np.stack([x, np.minimum(y + 1, SIZE)], axis=1), served
    ]  # fmt: skip
    cost = np.concatenate([x + y, x + y, x + y + 1.0])
    costs = {"both": np.tile(actions == 2, 3).astype(float), "other": np.repeat([1.0, 1.0, 2.0], n)}
    return np.concatenate([r, r, r]), np.repeat([0.3, 0.2, 0.5], n), np.concatenate(following), cost, costs


LIMITS = [ck.AtMost("both", 1.0), ck.AtMost("other", 9.0)]


def test_vectorised_functions_give_the_same_model_as_plain_ones():
    settings = {"constraints": LIMITS, "gamma": 0.9, "minimise": True}
    plain = ck.CMDP.from_function(
        queues, (0, 0), actions=lambda s: [0, 1, 2] if s == (SIZE, SIZE) else [0, 1], **settings
    )
    fast = ck.CMDP.from_function(
        queues_of_arrays, (0, 0), actions=[0, 1, 2], vectorised=True,
        available=lambda s: np.stack([np.full(len(s), True)] * 2 + [(s == SIZE).all(axis=1)], axis=1), **settings
    )  # fmt: skip
    assert plain.states == fast.states == (SIZE + 1) ** 2
    order = [fast.state_labels.index(label) for label in plain.state_labels]
    rows = np.concatenate([np.arange(fast.pairs.first[s], fast.pairs.first[s + 1]) for s in order])
    np.testing.assert_allclose(dense(fast)[rows][:, order], dense(plain), atol=1e-15)
    np.testing.assert_allclose(fast.costs[:, rows], plain.costs, atol=1e-14)
    np.testing.assert_array_equal(fast.initial[order], plain.initial)


def test_vectorised_functions_of_whole_numbers():
    def walk(states, actions):
        """A long walk in both directions, so that states are found in small steps and the table of states grows."""
        n = np.arange(states.size)
        step = np.where(actions == 0, 1, -1)
        return n, np.ones(states.size), np.clip(states + step, -3000, 3000), states.astype(float)

    cmdp = ck.CMDP.from_function(walk, 0, actions=["up", "down"], vectorised=True, gamma=0.9)
    assert cmdp.state_labels == tuple(range(-3000, 3001))
    np.testing.assert_array_equal(cmdp.objective[:, 0], np.arange(-3000.0, 3001.0))
    chosen = cmdp.transitions.indices.reshape(-1, 2)
    np.testing.assert_array_equal(chosen[:, 0], np.minimum(np.arange(6001) + 1, 6000))
    np.testing.assert_array_equal(chosen[:, 1], np.maximum(np.arange(6001) - 1, 0))


@pytest.mark.parametrize("width", [None, 1, 2, 3])
@pytest.mark.parametrize("spread", ["box", "both ways", "far apart", "then far apart", "extreme"])
def test_states_are_numbered_as_they_are_found(width, spread):
    """By direct addresses or by a hash table, against a dict."""
    rng = np.random.default_rng(0)
    numbering, index = Numbering(width, 10**6), {}
    for step in range(12):
        high = {"box": 3, "both ways": step + 1, "extreme": 3}.get(spread, 3 if step < 6 else 3 * 10**5)
        high = 3 * 10**5 if spread == "far apart" else high
        states = rng.integers(-high if spread == "both ways" else 0, high, (0 if step == 4 else 40, width or 1))
        if spread == "extreme" and width is None and step > 6:
            states[:2] = [[-(2**63)], [2**63 - 1]]
        states = states[:, 0] if width is None else states
        numbers = numbering.codes(states)
        known = len(index)
        for state, number in zip(states.tolist(), numbers.tolist(), strict=True):
            key = state if width is None else tuple(state)
            assert index.setdefault(key, number) == number
        assert sorted(index.values()) == list(range(len(index))), "every number once, and the new ones come last"
        assert min(list(index.values())[known:], default=known) == known
    found = np.concatenate(numbering.blocks)
    assert numbering.count == len(index) == len(found)
    keys = found.tolist() if width is None else list(map(tuple, found.tolist()))
    assert [index[key] for key in keys] == list(range(len(found)))
    far = width in (2, 3) if spread.endswith("apart") else spread == "extreme" and width is None
    assert isinstance(numbering.known, _Hashed) == far


def test_bad_vectorised_functions_are_refused():
    def run(function, initial=0, **changes):
        settings = {"actions": ["a", "b"], "vectorised": True, "gamma": 0.9, **changes}
        return ck.CMDP.from_function(function, initial, **settings)

    def stay(s, a):
        return np.arange(s.shape[0]), np.ones(s.shape[0]), s, np.zeros(s.shape[0])

    with pytest.raises(ValueError, match=r"no outcome for state 0, action 'b'"):
        run(lambda s, a: (np.array([0]), np.ones(1), s[:1], np.zeros(1)))
    with pytest.raises(ValueError, match=r"returns the tuple \(row, probability"):
        run(stay, constraints=[WEAR])
    with pytest.raises(ValueError, match=r"rows returned by the function must be whole numbers from 0 to 1"):
        run(lambda s, a: (np.array([0, 2]), np.ones(2), s, np.zeros(2)))
    with pytest.raises(ValueError, match=r"next states .* float64 .* must be whole numbers of shape \(2,\)"):
        run(lambda s, a: (np.arange(2), np.ones(2), s + 0.5, np.zeros(2)))
    with pytest.raises(ValueError, match=r"reward of shape \(1,\); it must have one entry per outcome"):
        run(lambda s, a: (np.arange(2), np.ones(2), s, np.zeros(1)))
    with pytest.raises(ValueError, match=r"state 0, action 'a': the probabilities sum to 0.5"):
        run(lambda s, a: (np.arange(2), np.full(2, 0.5), s, np.zeros(2)))
    with pytest.raises(ValueError, match=r"available returned .* must return booleans of shape \(1, 2\)"):
        run(stay, available=lambda s: np.ones((1, 2)))
    with pytest.raises(ValueError, match=r"more than max_states = 100"):
        run(lambda s, a: (np.arange(2), np.ones(2), s + 1, np.zeros(2)) if s.size == 2 else stay(s, a), max_states=100)
    with pytest.raises(ValueError, match=r"no cost 'wear'; did you mean 'waer'"):
        run(lambda s, a: (*stay(s, a), {"waer": np.zeros(2)}), constraints=[WEAR])
    with pytest.raises(ValueError, match=r"returned 3 costs, but the limits refer to 1"):
        run(lambda s, a: (*stay(s, a), np.zeros((3, 2))), constraints=[WEAR])
    with pytest.raises(TypeError, match=r"whole numbers or tuples of them, not 'x'"):
        run(stay, "x")
    with pytest.raises(ValueError, match=r"state with 4 numbers must be at least -16384 and below 16384; one is 99999"):
        run(stay, {(0, 0, 0, 0): 0.5, (0, 0, 99999, 99999): 0.5})
    with pytest.raises(ValueError, match="from 0 to 1"):  # a state alone may have any numbers
        run(lambda s, a: (np.arange(2), np.full(2, 2.0), s, np.zeros(2)), (0, 0, 99999, 0))


@pytest.mark.parametrize("vectorised", [False, True])
def test_outcomes_with_probability_zero_add_no_states(vectorised):
    """A walk down from 2: nobody leaves 0, and the state below it does not exist."""

    def one(state, _):
        return [(1.0 if state else 0.0, state - 1, 0.0), (0.0 if state else 1.0, state, 1.0)]

    def many(states, _):
        rows = np.concatenate([np.arange(states.size)] * 2)
        probability = np.concatenate([states > 0, states == 0]).astype(float)
        return rows, probability, np.concatenate([states - 1, states]), np.repeat([0.0, 1.0], states.size)

    model = ck.CMDP.from_function(many if vectorised else one, 2, actions=["go"], gamma=0.5, vectorised=vectorised)
    assert model.states == 3
    assert ck.solve(model).objective == pytest.approx(0.25 / (1 - 0.5))


# -- mistakes that people make -----------------------------------------------------------------------------------------


def other(**replaced):
    return {**columns(), **replaced}


def renamed(old, new):
    return {new if name == old else name: column for name, column in columns().items()}


MISTAKES = {
    "column": (renamed("next_state", "Next State"), r"did you mean 'Next State'\? Then say columns=\{'next_state': "),
    "short column": (renamed("probability", "prob"), r"did you mean 'prob'\? Then say columns="),
    "foreign columns": ({"s": ["a"], "p": [1.0]}, r"the columns are 's', 'p'; columns=\{'probability': '...'\} says"),
    "log": ({k: v for k, v in columns().items() if k != "probability"}, r"read by CMDP\.from_samples"),
    "percent": (other(probability=[90, 10, 100, 100]), r"is 90.0 \(4 such entries\).*; divide percentages by 100"),
    "percent sign": (other(probability=["90%", "10%", "1", "1"]), r"row 0: probability is '90%'.*0.9 for 90 %"),
    "decimal comma": (other(probability=["0,9", "0,1", "1", "1"]), r"'0,9', .*; write decimal points"),
    "typo": (other(next_state=["good", "baad", "good", "good"]), r"row 1: .* state 'baad' \(did you mean 'bad'\?\)"),
    "space": (other(next_state=["good", "bad ", "good", "good"]), r"row 1: .* state 'bad ' \(did you mean 'bad'\?\)"),
    "twice": (columns([*ROWS, ROWS[3]]), r"rows 3, 4: .* is listed more than once"),
    "index": (pd.DataFrame(columns()).set_index("state"), r"no column 'state'; it is in the index .*reset_index\(\)"),
    "rows": (pd.DataFrame(columns()).to_dict("records"), r"not list; pandas.DataFrame\(rows\) makes a frame"),
    "two types": (
        {"state": [1, 1, 2], "action": ["a", "b", "a"], "next_state": ["1", 2, 1], "probability": [1, 1, 1],
         "reward": [1, 0, 0], "wear": [0, 0, 0]},
        r"row 0: next_state is '1', and elsewhere 1: use the same type",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_common_mistakes_are_named_with_their_remedy(mistake):
    table, message = MISTAKES[mistake]
    with pytest.raises((ValueError, TypeError), match=message):
        ck.CMDP.from_table(table, constraints=[WEAR], gamma=0.9)


def test_files_that_are_no_comma_separated_tables(tmp_path):
    (tmp_path / "semicolons.csv").write_text("state;action;next_state;probability;reward\na;b;a;1;1\n")
    with pytest.raises(ValueError, match="separate the columns by commas"):
        ck.CMDP.from_table(tmp_path / "semicolons.csv", gamma=0.9)
    (tmp_path / "book.xlsx").write_bytes(b"PK\x03\x04")
    with pytest.raises(ValueError, match=r"book.xlsx is not a CSV file.*pandas.read_excel"):
        ck.CMDP.from_table(tmp_path / "book.xlsx", gamma=0.9)


def test_outcomes_without_a_list_or_without_costs():
    with pytest.raises(ValueError, match="must return a list of outcomes"):
        ck.CMDP.from_function(lambda s, a: (1.0, s, 1.0), 0, actions=[0], gamma=0.9)
    with pytest.raises(ValueError, match=r"the costs \('wear'\) are missing"):
        ck.CMDP.from_function(lambda s, a: [(1.0, s, 1.0)], 0, actions=[0], gamma=0.9, constraints=[WEAR])
    with pytest.raises(TypeError, match="constraints must be a list"):
        from_table(columns(), constraints={"wear": 4.0})
