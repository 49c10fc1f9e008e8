"""Reports without a browser: what they say, that figures are valid, and what is refused."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.insight.choices import choices_of
from cmdpkit.insight.figures import cividis, frontier_figure, policy_map, rounded, safe, stage_map, thinned, visits_map
from cmdpkit.insight.places import find_map
from cmdpkit.insight.report.page import embedded
from cmdpkit.insight.report.trained import smooth
from cmdpkit.insight.words import number, price_words, problem_words, proof_words
from cmdpkit.problems.places import places_of
from cmdpkit.run.training_folder import load_run


def text_of(path):
    return path.read_text(encoding="utf-8")


def figures_of(path):
    return json.loads(re.search(r'<script type="application/json" id="figures">(.*?)</script>', text_of(path)).group(1))


@pytest.fixture
def house():
    """The example of docs/criteria.md: selling a house within four weeks."""
    transitions = np.zeros((2, 2, 2))
    transitions[0] = [[0.7, 0.3], [0.4, 0.6]]
    transitions[1, :, 1] = 1
    return ck.CMDP(
        transitions, reward=[[30.0, 54.0], [0, 0]], constraints=[ck.AtMost([[1, 1], [0, 0]], 1.8, name="empty")],
        horizon=4, initial="unsold", state_labels=["unsold", "sold"], action_labels=["high", "low"], action_axis=1,
    )  # fmt: skip


CRITERIA = {
    "discounted": (
        lambda: ck.problems.wireless(buffer=4, gamma=0.9),
        "about 10 steps matter",
        "discounted average per step",
    ),
    "average": (lambda: ck.problems.wireless(buffer=4, average=True), "over and over again", "long-run average"),
    "total": (lambda: ck.problems.delivery(3, 3), "until the process ends", "expected total until the end"),
    "horizon": (lambda: ck.problems.epidemic(people=5, weeks=4), "4 steps; then", "expected value at stage 3"),
}


@pytest.mark.parametrize("name", sorted(CRITERIA))
def test_every_criterion_has_its_words_and_its_report(name, tmp_path):
    make, time, value = CRITERIA[name]
    cmdp = make()
    words = dict(problem_words(cmdp))
    assert time in words["Time"]
    assert value in words["Limited"]
    path = tmp_path / "report.html"
    result = ck.solve(cmdp)
    result.report(path, time_limit=5.0)
    assert number(result.objective, 7) in text_of(path)
    assert all(sentence.split(".")[0] in text_of(path) for sentence in proof_words(result)[:1])


def test_figures_are_valid_and_numbers_finite(tmp_path):
    """Plotly's own schema knows every property that is used."""
    from plotly.graph_objects import Figure

    for cmdp, axes in (
        (ck.problems.two_queues(capacity=4, gamma=0.9), {"queue 1": 5, "queue 2": 5}),
        (ck.problems.epidemic(people=5, weeks=4), None),
        (ck.problems.inventory(capacity=6, largest_order=3, gamma=0.9), None),
    ):
        path = tmp_path / "report.html"
        ck.solve(cmdp, "pmd-pd").report(path, axes=axes, time_limit=5.0)
        found = figures_of(path)
        assert len(found) >= 4
        for entry in found:
            Figure(entry["figure"])


def test_limits_of_both_sides_are_one_row_and_two_curves(tmp_path):
    base = ck.problems.paper()
    table, transitions = np.asarray(base.constraints[0].values), np.asarray(base.transitions).reshape(20, 10, 20)
    cmdp = ck.CMDP(transitions, reward=base.objective, gamma=0.8, constraints=[ck.Between(table, 2.0, 2.3, name="use")])
    path = tmp_path / "report.html"
    result = ck.solve(cmdp)
    result.report(path)
    limits = re.search(r'<section id="limits">(.*?)</section>', text_of(path)).group(1)
    assert limits.count("<tr") == 2  # the titles, and one limit
    assert "2 to 2.3" in limits
    assert number(float(result.multipliers[0])) in limits
    assert text_of(path).count("<h3>What the limit of use") == 2


def test_a_price_is_said_in_the_sense_of_its_limit():
    paper = ck.problems.paper()
    assert price_words(paper, paper.constraints[0], 0.25) == "one unit less earns up to 0.25 of reward"
    queues = ck.problems.two_queues(capacity=2)
    assert price_words(queues, queues.constraints[0], 2.0) == "one unit per step more saves up to 2 of cost"
    assert price_words(queues, queues.constraints[0], 0.0) == "does not bind"


def test_a_horizon_is_drawn_over_its_stages(house):
    result = ck.solve(house)
    choices = choices_of(result.policy, ck.evaluate(house, result.policy).pair_occupancy)
    drawn = stage_map(house, choices)["data"][0]
    assert np.shape(drawn["z"]) == (2, 4)
    table = result.policy.probabilities
    assert choices.best.tolist() == table.argmax(axis=2).tolist()
    assert choices.visits[0].tolist() == pytest.approx([1.0, 0.0])


def test_choices_are_those_of_the_policy():
    cmdp = ck.CMDP.from_table(
        {
            "state": ["a", "a", "b"], "action": ["x", "y", "z"], "next_state": ["b", "a", "a"],
            "probability": [1.0, 1.0, 1.0], "reward": [1.0, 0.0, 0.0], "use": [1.0, 0.0, 0.0],
        },
        constraints=[ck.AtMost("use", 1.2)], gamma=0.8, initial="a",
    )  # fmt: skip
    result = ck.solve(cmdp)
    occupancy = ck.evaluate(cmdp, result.policy)
    choices = choices_of(result.policy, occupancy.pair_occupancy)
    assert choices.plays(0, 0) == [(cmdp.pairs.action_index(a), p) for a, p in result.policy["a"].items()]
    assert choices.words(0, 1) == "z"
    assert choices.visits[0].tolist() == pytest.approx(occupancy.occupancy.sum(axis=1).tolist())
    assert choices.randomised.tolist() == [[True, False]]
    assert choices.most_visited(1)[1].tolist() == [int(choices.visits[0].argmax())]


# -- maps -------------------------------------------------------------------------------------------------------------


def test_maps_come_from_labels_and_from_axes():
    grid = ck.problems.grid(rows=3, columns=4)
    assert find_map(grid) is None
    assert find_map(grid, {"row": 3, "column": 4}).shape == (3, 4)
    labels = [divmod(i, 4) for i in range(12)]
    named = ck.CMDP(
        grid.transitions, reward=grid.objective, constraints=grid.constraints, gamma=0.95, state_labels=labels
    )
    where = find_map(named)
    assert where.spread(np.arange(12.0)).tolist() == np.arange(12.0).reshape(3, 4).tolist()
    for bad in ({"row": 5, "column": 4}, {"row": 3}, {"row": 3, "column": 2.5}):
        with pytest.raises(ValueError, match="axes must"):
            find_map(grid, bad)


@pytest.mark.parametrize("name", ["two_queues", "grid", "delivery", "wireless"])
def test_places_of_built_in_models_are_where_the_model_moves(name):
    """A transition leads to a place at most one step away, in each coordinate (a buffer may jump by more)."""
    cmdp = ck.problems.CATALOGUE[name]()
    names, at = places_of(name, {})
    assert at.shape == (cmdp.states, 2)
    rows, to = cmdp.transitions.nonzero()
    origin = rows // cmdp.actions
    known = (at[origin] >= 0).all(axis=1) & (at[to] >= 0).all(axis=1)
    steps = np.abs(at[origin] - at[to])[known]
    assert steps[:, 1].max() == 1
    assert steps[:, 0].max() == (3 if name == "wireless" else 1)
    assert find_map(cmdp, (names, at)) is not None


def test_a_map_has_holes_where_walls_are():
    layout = "S.#\n..G"
    cmdp = ck.problems.grid(layout=layout, visit_limit=1.0)
    where = find_map(cmdp, places_of("grid", {"layout": layout}))
    result = ck.solve(cmdp)
    choices = choices_of(result.policy, ck.evaluate(cmdp, result.policy).pair_occupancy)
    drawn = policy_map(cmdp, choices, where)["data"][0]["z"]
    assert drawn[0][2] is None
    assert sum(x is None for row in drawn for x in row) == 1
    visits = visits_map(choices, where, "share")["data"][0]["text"]
    assert sum(x for row in visits for x in row if x is not None) == pytest.approx(1.0, rel=1e-3)


# -- small parts ------------------------------------------------------------------------------------------------------


def test_frontier_figure_shows_what_cannot_be_met():
    found = ck.frontier(ck.problems.paper(), "utility", tol=1e-2)
    drawn = frontier_figure(found, (6.0, float("nan")))
    area = next(shape for shape in drawn["layout"]["shapes"] if shape["type"] == "rect")
    assert area["x0"] == pytest.approx(4.525027, abs=1e-5)
    assert area["x1"] > 6.0
    assert "this policy" not in [trace["name"] for trace in drawn["data"]]


def test_nothing_can_leave_the_embedded_data():
    text = embedded("data", {"x": "</script><!-- & \u2028"})
    assert text.count("<") == 2
    assert json.loads(text[text.index("{") : text.rindex("}") + 1]) == {"x": "</script><!-- & \u2028"}


def test_small_helpers():
    assert safe("<b>" + "x" * 80).startswith("&lt;b&gt;x")
    assert len(cividis(12)) == 12
    assert cividis(2) == ["#00224e", "#fee838"]
    assert rounded(np.array([1 / 3, np.nan, np.inf]), 3) == [0.333, None, None]
    assert thinned(5).tolist() == [0, 1, 2, 3, 4]
    assert thinned(10_000, 3).tolist() == [0, 5000, 9999]
    assert smooth(np.array([1.0, 3.0, 5.0]), 2).tolist() == [1.0, 2.0, 4.0]
    assert number(-0.0) == "0"
    assert number(-2.5) == "−2.5"
    assert number(float("nan")) == "none"


# -- what is refused --------------------------------------------------------------------------------------------------


def test_bad_arguments_are_refused_before_anything_is_written(tmp_path):
    result, path = ck.solve(ck.problems.paper()), tmp_path / "report.html"
    with pytest.raises(TypeError, match="results of solve or train, not int"):
        ck.write_report(3, path)
    with pytest.raises(TypeError, match="an empty list"):
        ck.write_report([], path)
    with pytest.raises(ValueError, match="about one result of solve"):
        ck.write_report([result, result], path)
    with pytest.raises(ValueError, match="certificates are for results of train"):
        result.report(path, certificates=[None])
    with pytest.raises(FileNotFoundError, match="does not exist"):
        result.report(tmp_path / "missing" / "report.html")
    with pytest.raises(ValueError, match=r"a report is an HTML file, and .*report\.pdf is not named like one"):
        result.report(tmp_path / "report.pdf")
    with pytest.raises(ValueError, match="axes must"):
        result.report(path, axes={"x": 3, "y": 3}, frontiers=False)
    assert not list(tmp_path.iterdir())


def test_a_report_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    from cmdpkit.insight.report.page import Page

    path = tmp_path / "report.html"
    path.write_text("before")
    monkeypatch.setattr(Page, "render", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ck.solve(ck.problems.paper()).report(path, frontiers=False)
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_without_plotly_it_says_what_to_install(tmp_path, monkeypatch):
    from cmdpkit.insight.report import page

    monkeypatch.setattr(page, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'cmdpkit\[look\]'"):
        ck.solve(ck.problems.paper()).report(tmp_path / "report.html")


def test_plotly_and_dash_are_not_imported_until_they_are_needed():
    code = (
        "import sys, cmdpkit as ck, cmdpkit.cli; ck.solve(ck.problems.paper()); "
        "print({'plotly', 'dash', 'flask'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_saved_result_and_a_simulator_have_a_report(tmp_path):
    result = ck.solve(ck.problems.paper())
    result.save(tmp_path / "run.npz")
    ck.Result.load(tmp_path / "run.npz").report(tmp_path / "report.html")
    assert "utility" in text_of(tmp_path / "report.html")
    learned = ck.solve(ck.problems.paper(), sampling=ck.Sampling(estimator="pooled"), max_iterations=5)
    learned.report(tmp_path / "learned.html", frontiers=False, seed=0)
    assert f"{learned.samples:,} transitions" in text_of(tmp_path / "learned.html")


def simulated():
    def step(stock, order, rng):
        return np.minimum(stock, 2), np.stack([order * 1.0, stock * 0.1])

    limits = [ck.AtMost(None, 1.0, name="stock")]
    return ck.Simulator(
        step, lambda n, rng: np.zeros(n, dtype=int), states=3, actions=2, gamma=0.5, constraints=limits,
        bounds=[(0.0, 1.0), (0.0, 1.0)],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ck.solve(simulated(), max_iterations=3), "fresh rollouts"),
        (lambda: ck.solve(ck.problems.paper().with_limits(utility=None)), "Nothing is limited."),
        (lambda: ck.solve(ck.problems.paper(), max_iterations=0), "iteration limit"),
        (lambda: ck.solve(ck.problems.maintenance(), deterministic=True), "this is not proved"),
        (
            lambda: ck.solve(ck.CMDP(np.ones((1, 1, 1)), reward=[[1.0]], gamma=0.9)),
            "In each of 1 state, which of 1 action",
        ),
    ],
    ids=["simulator", "no limits", "no iterations", "deterministic", "one state"],
)
def test_every_kind_of_result_has_a_report(make, said, tmp_path):
    path = tmp_path / "report.html"
    make().report(path, time_limit=1.0)
    assert said in text_of(path)


# -- the command ------------------------------------------------------------------------------------------------------


def run_command(*words):
    return subprocess.run(
        [sys.executable, "-m", "cmdpkit", "report", *map(str, words)], capture_output=True, text=True, check=False
    )


def test_the_command_writes_a_report(tmp_path):
    out = tmp_path / "report.html"
    done = run_command("paper", "--limit", "utility=6", "--out", out)
    assert done.returncode == 3, done.stderr
    assert "infeasible: report written to" in done.stdout
    assert "cmdpkit report paper --limit utility=6" in text_of(out)
    assert run_command("paper", "grid", "--out", out).returncode == 2


def test_runs_are_read_from_their_folders(tmp_path):
    settings = {"limits": [50.0, 50.0], "iterations": 2, "hidden": [8], "steps": 20, "num_envs": 2}
    trained = ck.train("cmdpkit/ConstrainedAcrobot-v0", seed=3, out=tmp_path / "run", **settings)
    loaded = load_run(tmp_path / "run")
    assert loaded.objective == pytest.approx(trained.objective)
    assert loaded.history.columns == trained.history.columns
    for column in ("objective", "constraint_values", "multipliers", "samples", "explained"):
        assert loaded.history[column] == pytest.approx(trained.history[column], nan_ok=True)
    assert (loaded.method, loaded.measure, loaded.verdicts) == (trained.method, trained.measure, trained.verdicts)
    done = run_command(tmp_path / "run", "--episodes", 20, "--out", tmp_path / "report.html")
    assert done.returncode == 0, done.stderr
    assert "20 fresh episodes" in text_of(tmp_path / "report.html")
    with pytest.raises(FileNotFoundError, match=r"no run\.json"):
        load_run(tmp_path)
    other = ck.train("cmdpkit/ConstrainedAcrobot-v0", seed=3, **settings | {"limits": [40.0, 50.0]})
    with pytest.raises(ValueError, match="different limits"):
        ck.write_report([trained, other], tmp_path / "both.html")
