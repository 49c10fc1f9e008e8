"""The experiments: everything runs, files are whole, and fitted rates are right on known curves."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from cmdpkit.experiments import acrobot, fig4, fig4_tuning, velocity
from cmdpkit.experiments.common import Settings, linear_rate, plain, read_csv, slope, write_csv
from cmdpkit.experiments.reproduce import EXPERIMENTS, SLOW, reproduce
from cmdpkit.options import options_of
from cmdpkit.settings import NeuralSettings


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("out") / "results"
    sections = reproduce(["all", *SLOW], folder, seeds=3, quick=True, track=lambda items, _: items)
    return folder, sections


def test_everything_runs(quick):
    folder, sections = quick
    assert len(sections) == len(EXPERIMENTS)
    for section in sections:
        assert section.claims
        for file, _ in section.figures:
            assert (folder / file).read_bytes().startswith(b"\x89PNG")
    page = (folder.parent / "results.md").read_text()
    for image in re.findall(r"!\[.*?\]\((.*?)\)", page):
        assert (folder.parent / image).exists()
    assert "not judged" in page
    assert "nan" not in page


def test_the_figures_facts(quick):
    """Averages of the paper's instance after 300 steps of size 1: test_first_order.py derives the same figures."""
    folder, _ = quick
    data = read_csv(folder / "fig1.csv")
    assert data["pmd-pd gap"][-1] == pytest.approx(0.0332501, abs=1e-6)
    assert data["pmd-pd violation"][-1] == pytest.approx(0.000364868, abs=1e-6)


def test_theory_ratios_are_below_one(quick):
    folder, _ = quick
    data = read_csv(folder / "theory_random.csv")
    for column in ("gap ratio", "violation ratio", "lambda ratio", "lambda star ratio", "T ratio"):
        assert data[column].max() <= 1.0
    inner = read_csv(folder / "theory_inner.csv")
    assert max(inner["value error"].max(), inner["log error"].max()) <= 1.0


def test_slow_experiments_are_shown_from_their_data(quick):
    """`all` leaves the hours of Figure 4 alone, but its section stays on the page."""
    folder, _ = quick
    before = (folder / "fig4.csv").read_bytes()
    sections = reproduce(["zero"], folder, seeds=3, quick=True, track=lambda items, _: items)
    assert [section.title for section in sections] == ["PMD-PD-Zero: no violation"]
    page = (folder.parent / "results.md").read_text()
    assert "Figure 4: Acrobot" in page
    assert "Figure 1:" in page
    assert (folder / "fig4.csv").read_bytes() == before


def test_figures_are_drawn_again_in_other_formats(quick):
    """Nothing is run: the data stay as they are."""
    folder, _ = quick
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.csv")}
    sections = reproduce(["fig1"], folder, 3, True, lambda items, _: items, formats=("pdf", "svg"), redraw=True)
    assert [section.title for section in sections] == ["Figure 1: the tabular experiment"]
    assert {path.name: path.stat().st_mtime_ns for path in folder.glob("*.csv")} == before
    assert (folder / "fig1.pdf").read_bytes().startswith(b"%PDF")
    text = (folder / "fig1.svg").read_text()
    assert "macro step" in text
    assert "clipped: curves go on" in text


def test_nothing_is_redrawn_without_data(tmp_path):
    with pytest.raises(FileNotFoundError, match="no data of fig1"):
        reproduce(["fig1"], tmp_path, 3, True, lambda items, _: items, redraw=True)


def test_one_seed_decides_no_claim():
    stored = Path(__file__).parent.parent / "docs/results"
    claims = fig4_tuning.section(Settings(stored)).claims
    assert len(set(read_csv(stored / "fig4_tuning.csv")["seed"])) == 1
    assert all(claim.verdict.startswith("undecided: one seed") for claim in claims)


def test_unknown_experiments_are_refused(tmp_path):
    with pytest.raises(ValueError, match="fig1, fig2"):
        reproduce(["fig9"], tmp_path / "x", 3, True, lambda items, _: items)
    assert not (tmp_path / "x").exists()


def test_fitted_rates_of_known_curves():
    k = np.arange(1.0, 1001.0)
    assert slope(k, 3.0 / k, 30) == pytest.approx(-1.0)
    assert slope(k, -2.0 / np.sqrt(k), 30) == pytest.approx(-0.5)
    assert linear_rate(0.99**k) == pytest.approx(0.99, abs=1e-6)
    # oscillation does not fool the rate
    assert linear_rate(0.98**k * np.cos(0.7 * k)) == pytest.approx(0.98, abs=2e-3)


def test_csv_round_trip(tmp_path):
    write_csv(tmp_path / "a.csv", {"name": ["x", "y"], "value": np.array([0.1, 1e-17])})
    data = read_csv(tmp_path / "a.csv")
    assert list(data["name"]) == ["x", "y"]
    np.testing.assert_array_equal(data["value"], [0.1, 1e-17])


def test_figure_4_has_the_papers_settings_whatever_the_defaults_are():
    free = {
        "line_search",
        "inner_steps",
        "alpha",
        "critic_rate",
        "margin",
        "persist",
        "deviation",
        "least_deviation",
        "surrogate",
    }  # as published, or the method's own
    free |= {"clip", "temperature", "policy_rate", "policy_epochs", "policy_minibatch"}  # of other surrogates
    assert set(fig4.PAPER) == set(options_of(NeuralSettings)) - free
    paper = {"num_envs": 10, "steps": 500, "gamma": 0.98, "hidden": [128, 128], "radius": 0.003, "cg_steps": 10}
    for method in ("pmd-pd", "npg-pd", "crpo"):
        assert {name: fig4.OPTIONS[method][name] for name in paper} == paper
    assert [fig4.OPTIONS[m]["damping"] for m in ("pmd-pd", "npg-pd", "crpo")] == [0.001, 0.001, 0.006]


def test_speed_limits_are_judged_by_reward_cost_and_collapses():
    published = {"A": (100.0, 20.0), "B": (500.0, 40.0)}  # B is over the limit
    reward, cost = np.array([110.0, 120.0, 100.0]), np.array([20.0, 25.0, 30.0])
    assert velocity.verdict(reward, cost, published) == "holds"
    assert velocity.verdict(reward, cost + 3.0, published) == "does not: its cost is 3.0 over the limit"
    assert velocity.verdict(reward - 20.0, cost, published) == "does not: A earns 10 more"
    assert "1 of 3 seeds" in velocity.verdict(np.array([300.0, 10.0, 300.0]), cost, published)
    assert "no published figures" in velocity.verdict(reward, cost, {})


def test_methods_are_chosen_for_the_robots_only(tmp_path):
    with pytest.raises(ValueError, match="unknown method 'opg-pd'; choose from pmd-pd"):
        reproduce(["velocity"], tmp_path, 1, True, plain, methods=["opg-pd"])
    with pytest.raises(ValueError, match="unknown robot 'Dog'; choose from HalfCheetah, Hopper"):
        reproduce(["velocity"], tmp_path, 1, True, plain, robots=["Dog"])
    with pytest.raises(ValueError, match="for velocity only"):
        reproduce(["fig1"], tmp_path, 1, True, plain, methods=["cpo"])


def test_robots_are_run_with_several_methods(tmp_path, monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.setattr(velocity, "run_once", lambda case, seed, iterations, folder, options: _made_up(case, seed))
    sections = reproduce(["velocity"], tmp_path, 1, True, plain, methods=["cpo", "pmd-pd"])
    robots = ["Hopper", "Hopper", "Swimmer", "Swimmer"]  # against published methods, and against ours
    assert [claim.statement.replace(":", ",").split(",")[0] for claim in sections[0].claims[:-1]] == robots
    assert "121 ± 1/10.0" in sections[0].claims[0].measured  # seeds 10 and 11
    assert "2 seeds: pmd-pd 121/10.0, cpo 121/10.0" in sections[0].claims[1].measured
    assert sections[0].commands == ("velocity --seeds 2 --robot Hopper --robot Swimmer --method pmd-pd --method cpo",)
    before = read_csv(tmp_path / "velocity.csv")
    monkeypatch.setattr(velocity, "run_once", lambda case, seed, *_: _made_up(case, seed + 100))
    reproduce(["velocity"], tmp_path, 1, True, plain, methods=["rcpo"], robots=["Swimmer"])
    after = read_csv(tmp_path / "velocity.csv")
    assert list(after) == [*before, *(name for name in after if name.startswith("Swimmer rcpo"))]
    assert all((after[name] == column).all() for name, column in before.items())
    claims = velocity.section(Settings(tmp_path)).claims
    assert claims[3].verdict == "does not: rcpo earns 200 more"
    assert "2 runs of each method on 1 robot: mean" in claims[-1].measured
    assert "rcpo 2.65 (2.64, 2)" in claims[-1].measured
    assert claims[-1].verdict == "does not: rcpo earns 165 % more"


def test_the_page_says_which_command_every_section_comes_from(tmp_path):
    for name, seeds in (("zero", 3), ("fig1", 2)):
        reproduce([name], tmp_path / "results", seeds, True, plain)
    reproduce(["all"], tmp_path / "results", 30, True, plain, redraw=True)
    page = (tmp_path / "results.md").read_text()
    assert "`cmdpkit reproduce zero --seeds 3 --quick`" in page
    assert "`cmdpkit reproduce fig1 --seeds 2 --quick`" in page


def test_seeds_are_added_to_those_that_a_folder_has(tmp_path, monkeypatch):
    pytest.importorskip("mujoco")
    rng, run = np.random.default_rng(0), []

    def once(case, seed, iterations, *_):
        run.append(seed)
        return {"table": rng.normal(size=(iterations, 2)), "time": np.array(1.0), "steps": np.array(200)}

    monkeypatch.setattr(velocity, "run_once", once)
    monkeypatch.setattr(velocity, "ITERATIONS", 30)
    monkeypatch.setattr(
        velocity, "run_all", lambda jobs, *_: [answers.append(once(*job)) or answers[-1] for job in jobs]
    )
    answers: list[dict[str, np.ndarray]] = []
    for seeds in (2, 5, 5):
        velocity.run(Settings(tmp_path, seeds, robots=("Ant",)))
    assert run == [10, 11, 12, 13, 14]
    tables, data = np.array([answer["table"] for answer in answers]), read_csv(tmp_path / "velocity.csv")
    np.testing.assert_allclose(data["Ant pmd-pd cost mean"], tables[:, :, 1].mean(axis=0), atol=2e-3)
    np.testing.assert_allclose(data["Ant pmd-pd reward std"], tables[:, :, 0].std(axis=0), atol=2e-3)
    rows = read_csv(tmp_path / "velocity_seeds.csv")
    np.testing.assert_allclose(rows["reward"], tables[:, -velocity.LAST :, 0].mean(axis=1), atol=1e-3)


def test_runs_of_another_length_are_not_kept(tmp_path, monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.setattr(velocity, "run_once", lambda case, seed, *_: _made_up(case, seed))
    reproduce(["velocity"], tmp_path, 1, True, plain, methods=["cpo"])
    longer = {name: np.repeat(column, 2) for name, column in read_csv(tmp_path / "velocity.csv").items()}
    write_csv(tmp_path / "velocity.csv", longer)
    reproduce(["velocity"], tmp_path, 1, True, plain)
    after = read_csv(tmp_path / "velocity.csv")
    assert len(after["iteration"]) == 2
    assert not any("cpo" in name for name in after)


def test_robots_are_compared_on_the_seeds_that_all_methods_have():
    mine, fewer = (np.array([100.0, 0.0]), np.full(2, 10.0)), (np.array([90.0]), np.full(1, 10.0))
    more = (np.array([95.0, 200.0]), np.array([10.0, 50.0]))
    claim = velocity._against_others("Hopper", {"pmd-pd": mine, "cpo": fewer, "pcpo": more})
    assert claim.measured == "reward/cost, 1 seed: pmd-pd 100/10.0, cpo 90/10.0, pcpo 95/10.0"
    assert claim.verdict == "holds (one seed)"


def test_commands_of_the_robots_name_what_was_run():
    cases = [("Hopper", "pmd-pd", 2), ("Hopper", "cpo", 1), ("Ant", "pmd-pd", 1), ("Ant", "cpo", 1), ("Ant", "pcpo", 1)]
    rows = [(robot, method, seed) for robot, method, seeds in cases for seed in range(seeds)]
    runs = {name: np.array([row[i] for row in rows]) for i, name in enumerate(("robot", "method", "reward"))}
    assert velocity._commands(runs | {"cost": runs["reward"]}) == (
        "velocity --seeds 2 --robot Hopper",
        "velocity --seeds 1 --robot Hopper --robot Ant --method cpo",
        "velocity --seeds 1 --robot Ant --method pmd-pd --method pcpo",
    )


def test_acrobot_is_compared_with_the_figures_of_the_paper(tmp_path, monkeypatch):
    def made_up(method, seed, iterations, folder, options):
        table = np.tile([100.0 + 2 * seed, 50.0, 49.0], (iterations, 1))
        return {"table": table, "time": np.array(1.0), "steps": np.array(200)}

    monkeypatch.setattr(fig4.run_all, "__defaults__", (made_up,))
    sections = reproduce(["acrobot"], tmp_path, 1, True, plain)
    assert "reward 101.0 ± 1.0, cost 1 50.0 ± 0.0, cost 2 49.0 ± 0.0 (2 seeds)" in sections[0].claims[0].measured
    for name in (fig4.DATA, "fig4_seeds.csv"):
        shutil.copy(Path(__file__).parent.parent / "docs/results" / name, tmp_path / name)
    claims = acrobot.section(Settings(tmp_path)).claims
    assert claims[0].verdict.startswith("does not: with the defaults PMD-PD earns less, -116.5")
    assert "from 4,000 steps (the defaults), 375,000 steps" in claims[1].measured
    assert [claim.verdict for claim in claims[1:]] == ["holds", "holds"]
    assert "1.0 (the defaults), 8.4 (the paper's settings)" in claims[2].measured


def _made_up(case, seed):
    table = np.tile([100.0 + 2 * seed, 10.0], (2, 1))
    return {"table": table, "time": np.array(1.0), "steps": np.array(200)}


def test_ant_and_humanoid_are_those_of_the_published_figures():
    pytest.importorskip("mujoco")
    assert velocity.make("Ant").observation_space.shape == (27,)
    for robot in ("Ant", "Humanoid"):
        env = velocity.make(robot)
        env.reset(seed=0)
        env.action_space.seed(0)
        for _ in range(60):  # contacts come after a few steps
            _, reward, *_, info = env.step(env.action_space.sample())
            assert reward == pytest.approx(sum(info[f"reward_{part}"] for part in ("forward", "ctrl", "survive")))


def test_robots_are_charged_for_speed():
    pytest.importorskip("mujoco")
    for robot in ("Hopper", "Ant"):
        env = velocity.make(robot)
        env.reset(seed=0)
        env.action_space.seed(0)
        infos = [env.step(env.action_space.sample())[-1] for _ in range(30)]
        speeds = [np.hypot(i["x_velocity"], i["y_velocity"] if robot == "Ant" else 0.0) for i in infos]
        if robot == "Hopper":
            speeds = [i["x_velocity"] for i in infos]
        assert [i["cost"] for i in infos] == [float(speed > velocity.SPEEDS[robot]) for speed in speeds]
