"""Policies that people can read: tables, frames, CSV, HTML, and actions drawn by label."""

import csv
import json
import sys
import types

import numpy as np
import pytest
from click.testing import CliRunner

import cmdpkit as ck
from cmdpkit.cli.main import cli
from cmdpkit.tables import Table

STATES, ACTIONS = ("good", "worn", "<broken>"), ("run", "repair")


def machine(labels=True):
    """Running a worn machine may break it; a broken one can only be repaired."""
    P = np.zeros((3, 2, 3))
    P[0, 0] = [0.8, 0.2, 0.0]
    P[1, 0] = [0.0, 0.5, 0.5]
    P[:, 1, 0] = 1.0
    names = {"state_labels": STATES, "action_labels": ACTIONS} if labels else {}
    wear = ck.AtMost([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]], 1.0, name="wear & tear")
    return ck.CMDP(
        P, reward=[[2.0, 0.0], [3.0, 0.0], [0.0, -0.5]], constraints=[wear], gamma=0.9, initial=0,
        available=[[True, True], [True, True], [False, True]], **names,
    )  # fmt: skip


def policy(labels=True):
    pairs = machine(labels).pairs
    return ck.TabularPolicy.over(pairs, np.array([1.0, 0.0, 0.25, 0.75, 1.0]))


ROWS = [("good", "run", 1.0), ("worn", "repair", 0.75), ("worn", "run", 0.25), ("<broken>", "repair", 1.0)]


def test_table_has_the_actions_that_are_played():
    table = policy().table()
    assert table.rows == ROWS
    assert len(table) == table.total == 4
    assert str(table).splitlines() == [
        "state     action  probability",
        "good      run               1",
        "worn      repair         0.75",
        "worn      run            0.25",
        "<broken>  repair            1",
    ]
    assert policy(labels=False).table().rows[1:3] == [(1, 1, 0.75), (1, 0, 0.25)]


def test_a_limit_says_what_is_left_out():
    table = policy().table(limit=2)
    assert table.rows == ROWS[:2]
    assert str(table).splitlines()[-1] == "... 2 more rows of 4"
    with pytest.raises(ValueError, match="limit"):
        policy().table(limit=0)


def test_one_state():
    assert policy()["worn"] == {"repair": 0.75, "run": 0.25}
    assert list(policy()["worn"]) == ["repair", "run"]
    assert policy(labels=False)[2] == {1: 1.0}
    with pytest.raises(ValueError, match="there is no state 'new'; the states are 'good', 'worn', '<broken>'"):
        policy()["new"]
    with pytest.raises(ValueError, match="state 3 is not one of 0 to 2"):
        policy(labels=False)[3]
    with pytest.raises(TypeError):
        list(policy())


def test_csv(tmp_path):
    policy().to_csv(tmp_path / "policy.csv")
    with open(tmp_path / "policy.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["state", "action", "probability"]
    assert [(s, a, float(p)) for s, a, p in rows[1:]] == ROWS
    assert [path.name for path in tmp_path.iterdir()] == ["policy.csv"]


def test_frame(monkeypatch):
    made = {}
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=made.update))
    policy().to_frame()
    assert list(zip(*made.values(), strict=True)) == ROWS
    assert list(made) == ["state", "action", "probability"]
    tuples = ck.CMDP(np.ones((1, 2, 1)), reward=[[0.0, 1.0]], gamma=0.5, state_labels=[(1, 2)]).pairs
    ck.TabularPolicy.over(tuples, np.array([[0.5, 0.5]])).to_frame()
    assert made["state"].shape == (2,)
    assert made["state"][0] == (1, 2)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="needs pandas"):
        policy().to_frame()


def test_real_frame():
    pd = pytest.importorskip("pandas")
    frame = policy().to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert [tuple(row) for row in frame.itertuples(index=False)] == ROWS


def test_randomised_states():
    assert policy().randomised_states() == ["worn"]
    assert policy(labels=False).randomised_states() == [1]
    assert policy().randomised_states(threshold=0.3) == []
    assert policy().randomised_states(occupancy=[1.0, 0.0, 0.0]) == []
    assert policy().randomised_states(occupancy=ck.evaluate(machine(), policy()).occupancy) == ["worn"]
    with pytest.raises(ValueError, match="occupancy has shape"):
        policy().randomised_states(occupancy=[1.0])


# -- drawing actions --------------------------------------------------------------------------------------------------


def test_act_draws_with_the_policy_s_probabilities():
    rng = np.random.default_rng(0)
    table = rng.dirichlet(np.ones(7), size=5) * (rng.random((5, 7)) < 0.7)
    table[:, 0] += 1e-3
    table /= table.sum(axis=1, keepdims=True)
    states = rng.integers(0, 5, 200_000)
    actions = ck.TabularPolicy(table).act(states, rng)
    counts = np.zeros((5, 7))
    np.add.at(counts, (states, actions), 1)
    assert not counts[table == 0.0].any()
    n = counts.sum(axis=1, keepdims=True)
    assert (np.abs(counts - n * table) <= 5.0 * np.sqrt(n * table * (1.0 - table)) + 1e-9).all()


def test_act_is_the_inverse_of_the_distribution():
    """With given uniform numbers: the action in whose part of [0, 1) the number lies."""

    class Given(np.random.Generator):
        def random(self, size=None):  # type: ignore[override]
            return np.linspace(0.0, 1.0, size, endpoint=False)

    weights = np.array([0.1, 0.0, 0.2, 0.3, 0.0, 0.4])
    levels = np.arange(1_000) / 1_000.0
    drawn = ck.TabularPolicy([weights]).act(np.zeros(1_000, dtype=int), Given(np.random.PCG64(0)))
    wanted = np.searchsorted(np.cumsum(weights), levels, side="right")
    inside = np.abs(np.cumsum(weights)[:, None] - levels).min(axis=0) > 1e-9
    np.testing.assert_array_equal(drawn[inside], wanted[inside])


def test_act_never_plays_what_is_not_there():
    rng = np.random.default_rng(1)
    assert set(policy().act(np.full(1_000, 2), rng)) == {1}
    assert set(policy().act(np.zeros((3, 4), dtype=int), rng).ravel()) == {0}
    many = ck.TabularPolicy([[0.0, 1.0, 0.0, 0.0], [1e-300, 0.0, 1.0, 0.0]])
    assert set(many.act(np.array([0, 1] * 1_000), rng)) == {1, 2}


def test_act_by_label():
    rng = np.random.default_rng(0)
    assert policy().act("good", rng) == "run"
    assert policy().act(["good", "<broken>"], rng) == ["run", "repair"]
    assert policy().act(np.array(["good", "<broken>"]), rng) == ["run", "repair"]
    assert set(policy().act(["worn"] * 100, rng)) == {"run", "repair"}
    assert policy().act(0, rng) == 0
    assert policy().act([0, 2], rng).tolist() == [0, 1]
    with pytest.raises(ValueError, match="there is no state 'new'"):
        policy().act(["good", "new"], rng)
    pairs = ck.CMDP(np.ones((1, 2, 1)), reward=[[0.0, 1.0]], gamma=0.5, state_labels=[(0, 1)]).pairs
    tuples = ck.TabularPolicy.over(pairs, np.array([[0.0, 1.0]]))
    assert tuples.act((0, 1), rng) == 1
    assert tuples.act([(0, 1), (0, 1)], rng) == [1, 1]
    whole = ck.TabularPolicy.over(pairs.named((7,), None), np.array([[0.0, 1.0]]))
    assert whole.act([7, 7], rng) == [1, 1]
    with pytest.raises(ValueError, match="no state 0"):
        whole.act([0], rng)


def test_act_refuses():
    rng = np.random.default_rng(0)
    plain = policy(labels=False)
    with pytest.raises(ValueError, match="state 3 is not one of 0 to 2"):
        plain.act([0, 3], rng)
    with pytest.raises(ValueError, match="state -1"):
        plain.act(-1, rng)
    with pytest.raises(TypeError, match="whole numbers"):
        plain.act([0.5], rng)
    with pytest.raises(TypeError, match="whole numbers"):
        plain.act("good", rng)
    with pytest.raises(TypeError, match="Generator"):
        plain.act([0], 0)


# -- notebooks --------------------------------------------------------------------------------------------------------


def test_html_is_escaped_and_small():
    cmdp = machine()
    result = ck.solve(cmdp)
    html = policy()._repr_html_()
    assert "&lt;broken&gt;" in html
    assert "<broken>" not in html
    assert "wear &amp; tear" in cmdp._repr_html_()
    assert "OPTIMAL" in result._repr_html_()
    assert "wear &amp; tear" in result._repr_html_()
    assert f"{result.objective:.9g}" in result.certificate._repr_html_()
    large = ck.TabularPolicy.uniform(500, 4)
    assert "1,980 more rows of 2,000" in large._repr_html_()
    assert len(large._repr_html_()) < 4_000
    assert len(repr(large.table()).splitlines()) == 22
    mixture = ck.MixturePolicy([policy(), policy()], [0.25, 0.75])
    assert "<td>0.75</td>" in mixture._repr_html_()
    staged = ck.StagedPolicy([policy(), policy()])._repr_html_()
    assert "2 stages, 3 states" in staged
    assert "stage" in staged
    assert "&lt;broken&gt;" in staged


def test_html_of_other_results():
    P = np.ones((1, 2, 1))
    use = [[0.0, 1.0]]
    impossible = ck.CMDP(P, reward=use, constraints=[ck.AtLeast(use, 3.0)], gamma=0.5)
    assert "cannot be met" in ck.solve(impossible)._repr_html_()
    sampled = ck.solve(machine(labels=False), sampling=ck.Sampling(), max_iterations=2)
    assert "SAMPLE" in sampled._repr_html_() or "LIMIT" in sampled._repr_html_()
    assert "<td>3</td>" not in Table({"a": [1, 2]}).html()


# -- cmdpkit show -----------------------------------------------------------------------------------------------------


def show(*arguments):
    answer = CliRunner().invoke(cli, ["show", *map(str, arguments)])
    if answer.exception and not isinstance(answer.exception, SystemExit):
        raise answer.exception
    assert answer.exit_code == 0
    return answer.output


@pytest.fixture
def files(tmp_path):
    cmdp = machine()
    result = ck.solve(cmdp)
    cmdp.save(tmp_path / "model.npz")
    result.policy.save(tmp_path / "policy.npz")
    result.save(tmp_path / "run.npz")
    ck.MixturePolicy([policy(), result.policy], [0.25, 0.75]).save(tmp_path / "mixture.npz")
    return tmp_path


def test_show_model(files):
    text = show(files / "model.npz")
    for words in ("model", "3 (good, worn, <broken>)", "5 of 6 pairs", "reward, maximised", "wear & tear", "<= 1"):
        assert words in text
    facts = json.loads(show(files / "model.npz", "--json"))
    assert facts["kind"] == "model"
    assert facts["states"] == 3
    assert facts["pairs"] == 5
    assert facts["state_labels"] == list(STATES)
    assert facts["constraints"][0] == {"name": "wear & tear", "sense": "<=", "limit": 1.0, "per_step": False}


def test_show_policy(files):
    text = show(files / "policy.npz")
    assert "randomises in 1 state: worn" in text
    assert "repair" in text
    assert "more row" in show(files / "policy.npz", "--limit", 1)
    facts = json.loads(show(files / "policy.npz", "--json"))
    assert facts["kind"] == "policy"
    assert facts["rows"][0] == {"state": "good", "action": "run", "probability": 1.0}
    assert facts["randomised_states"] == ["worn"]
    assert facts["total_rows"] == len(facts["rows"])


def test_show_result_and_mixture(files):
    text = show(files / "run.npz")
    for words in ("OPTIMAL", "wear & tear", "shadow price", "randomises in 1 state: worn", "<broken>"):
        assert words in text
    facts = json.loads(show(files / "run.npz", "--json", "--limit", 2))
    assert facts["kind"] == "result"
    assert facts["status"] == "optimal"
    assert len(facts["policy"]["rows"]) == 2
    assert "2 policies" in show(files / "mixture.npz")
    assert json.loads(show(files / "mixture.npz", "--json"))["weights"] == [0.25, 0.75]


def test_show_refuses_other_files(tmp_path):
    np.savez(tmp_path / "other.npz", a=np.zeros(2))
    (tmp_path / "summary.json").write_text("{}")
    for name, words in (("other.npz", "not written by cmdpkit"), ("summary.json", "not a readable"), ("no", "no such")):
        with pytest.raises((ValueError, FileNotFoundError), match=words):
            show(tmp_path / name)
    with pytest.raises(ValueError, match="limit"):
        show(tmp_path / "other.npz", "--limit", 0)


def test_solve_on_the_command_line_keeps_the_labels(files, tmp_path):
    answer = CliRunner().invoke(cli, ["solve", str(files / "model.npz"), "--out", str(tmp_path / "p.npz")])
    assert answer.exit_code == 0
    assert ck.TabularPolicy.load(tmp_path / "p.npz")["good"] == {"run": 1.0}
    best = CliRunner().invoke(cli, ["solve", str(files / "model.npz"), "--deterministic", "--json"])
    assert best.exit_code == 0
    assert "deterministic_bound" in json.loads(best.output)


def test_a_model_of_averages_says_so():
    model = ck.problems.wireless(average=True)
    assert "long-run averages" in model._repr_html_()
    assert "gamma" not in model._repr_html_()


def test_an_empty_file_and_a_folder_are_named(tmp_path):
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ValueError, match=r"empty\.csv is empty: it has no columns"):
        ck.CMDP.from_table(tmp_path / "empty.csv", gamma=0.9)
    with pytest.raises(IsADirectoryError, match="is a folder; give the name of a CSV file"):
        ck.CMDP.from_table(tmp_path, gamma=0.9)
