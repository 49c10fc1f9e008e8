"""Sweeps: every run is the one that a direct call makes, continues where it was, and stops early where asked."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.rules.base import Weights

PAPER = ck.problems.paper()


def sweep(folder, **given):
    settings = {"grid": {"eta_dual": [0.1, 1.0]}, "seeds": 2, "iterations": 12, "step": 1.0} | given
    return ck.sweep(PAPER, ["pmd-pd", "npg-pd"], out=folder, sampling=ck.Sampling(rollouts=2), **settings)


def test_runs_are_those_of_direct_calls(tmp_path):
    found = sweep(tmp_path)
    assert found.complete
    assert [(run.method, run.settings["eta_dual"], run.seed) for run in found.runs] == [
        (method, eta, seed) for method in ("pmd-pd", "npg-pd") for eta in (0.1, 1.0) for seed in (0, 1)
    ]
    for run in found.runs[::3]:
        options = {"eta_dual": run.settings["eta_dual"], "step": 1.0, "sampling": ck.Sampling(rollouts=2)}
        alone = ck.solve(PAPER, run.method, seed=run.seed, max_iterations=12, **options)
        assert (run.objective, run.iterations, run.samples) == (alone.objective, 12, alone.samples)
        np.testing.assert_array_equal(run.constraint_values, alone.constraint_values)


def test_table_figure_and_best(tmp_path):
    found = sweep(tmp_path)
    with (tmp_path / "sweep.csv").open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    assert [float(row["objective"]) for row in rows] == [run.objective for run in found.runs]
    assert (tmp_path / "sweep.png").stat().st_size > 10_000
    means = {}
    for run in found.runs:
        means.setdefault((run.method, run.settings["eta_dual"]), []).append((max(0.0, run.violation - 0.05), run))
    beyond = {key: np.mean([miss for miss, _ in runs]) for key, runs in means.items()}
    chosen = found.best
    assert beyond[chosen.method, chosen.settings["eta_dual"]] == min(beyond.values())


def test_a_sweep_continues_where_its_runs_were(tmp_path):
    short = sweep(tmp_path / "two", iterations=5)
    longer, whole = sweep(tmp_path / "two"), sweep(tmp_path / "one")
    assert {run.iterations for run in short.runs} == {5}
    assert [run.objective for run in longer.runs] == [run.objective for run in whole.runs]
    assert [run.samples for run in longer.runs] == [run.samples for run in whole.runs]


def test_settings_that_do_badly_stop_early(tmp_path):
    found = sweep(tmp_path, grid={"eta_dual": [1e-6, 0.1, 1.0, 3.0]}, halving=2, iterations=16, seeds=1)
    stopped = [run for run in found.runs if run.stopped]
    lengths = sorted(run.iterations for run in found.runs)
    assert lengths == [2, 2, 2, 2, 4, 4, 8, 16]  # eight settings; half of them are left at every rung
    assert len(stopped) == 7
    assert found.best.iterations == 16


def test_a_run_that_fails_is_a_row(tmp_path):
    def observe(*_):
        raise ArithmeticError("no multipliers")

    bad = SimpleNamespace(start=lambda view: 0, propose=lambda state, view: (Weights(1.0, view.values), 0))
    bad.observe = observe
    found = ck.sweep(PAPER, {"good": "npg-pd", "bad": bad}, out=tmp_path, iterations=3, step=1.0)
    assert [run.status.split(":")[0] for run in found.runs] == ["iteration limit", "failed"]
    assert found.best.method == "good"


def test_environments_are_trained(tmp_path):
    small = {"num_envs": 2, "steps": 32, "hidden": [8]}
    found = ck.sweep("cmdpkit/ConstrainedAcrobot-v0", ["pmd-pd"], out=tmp_path, limits=[50, 50], iterations=2, **small)
    alone = ck.train("cmdpkit/ConstrainedAcrobot-v0", "pmd-pd", [50, 50], iterations=2, out=tmp_path / "alone", **small)
    assert found.runs[0].samples == alone.samples
    assert found.runs[0].constraint_values.shape == (2,)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"grid": {"eta_dual": 0.1}}, "must be a list of the values to try"),
        ({"grid": {"step": [1.0]}}, "given as an option and in the grid"),
        ({"halving": 1}, "halving"),
        ({"iterations": 0}, "iterations"),
        ({"limits": [1.0]}, "limits of their own"),
        ({"cluster": "ray://x"}, "ray://"),
        ({"grid": {"eta_dual": [0.1, -1.0]}}, "eta_dual"),
        ({"grid": {"eta": [0.1]}}, "unknown option 'eta'"),
    ],
)
def test_bad_calls_are_refused_before_anything_runs(tmp_path, given, match):
    with pytest.raises((ValueError, TypeError), match=match):
        sweep(tmp_path / "new", **given)
    assert not (tmp_path / "new").exists()


def test_unknown_methods_are_refused_before_anything_runs(tmp_path):
    for subject, given in ((PAPER, {}), ("cmdpkit/ConstrainedAcrobot-v0", {"limits": [50, 50]})):
        with pytest.raises(ValueError, match="unknown method 'pmdpd'"):
            ck.sweep(subject, ["pmd-pd", "pmdpd"], out=tmp_path / "new", **given)
    with pytest.raises(ValueError, match="'auto' needs a model"):
        ck.sweep("cmdpkit/ConstrainedAcrobot-v0", ["auto"], out=tmp_path / "new", limits=[50, 50])
    assert not (tmp_path / "new").exists()


def test_another_sweep_is_not_mixed_in(tmp_path):
    sweep(tmp_path, iterations=1)
    with pytest.raises(ValueError, match="holds a sweep of another subject"):
        ck.sweep(ck.problems.wireless(), ["npg-pd"], out=tmp_path, iterations=1)
