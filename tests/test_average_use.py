"""Long-run averages as users meet them: every method, the command line, files, words, and what is refused."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import cmdpkit as ck
from cmdpkit.cli.main import cli
from cmdpkit.run.status import Status
from long_run import average_lp, communicating


def queue(limit=1.0):
    """Admission to a queue of at most 5: an arrival with 0.3, a service with 0.4 per tick; most admissions."""
    P, admitted = np.zeros((6, 2, 6)), np.zeros((6, 2))
    for n in range(6):
        for a in (0, 1):
            P[n, a, max(n - 1, 0)] += 0.4
            P[n, a, min(n + a, 5)] += 0.3
            P[n, a, n] += 0.3
        admitted[n, 1] = 0.3 if n < 5 else 0.0
    limits = [] if limit is None else [ck.AtMost(np.arange(6.0)[:, None] * np.ones((1, 2)), limit, name="length")]
    return ck.CMDP(P, reward=admitted, constraints=limits, average=True, initial=5, action_axis=1)


# -- every method ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["auto", "columns", "lp", "pmd-pd", "pmd-pd-zero"])
def test_methods_that_prove_the_optimum(method):
    cmdp = queue()
    result = ck.solve(cmdp, method)
    assert result.status is Status.OPTIMAL
    assert result.objective == pytest.approx(average_lp(cmdp), abs=2e-6)
    if method == "pmd-pd-zero":
        assert result.violations.max() == 0.0


@pytest.mark.parametrize("method", ["npg-pd", "crpo", "augmented-lagrangian", "pid-lagrangian"])
def test_methods_that_approach_it(method):
    cmdp = queue()
    result = ck.solve(cmdp, method, tol=0.0, max_iterations=1_500)
    assert result.status is Status.ITERATION_LIMIT
    truth, certificate = average_lp(cmdp), result.certificate
    assert certificate.optimal(1e-2), certificate
    assert certificate.bound >= truth - 1e-12
    averages = ck.long_run_averages(cmdp, result.policy)
    np.testing.assert_allclose([result.objective, *result.constraint_values], [averages[0], *averages[1]], atol=1e-10)


@pytest.mark.parametrize("method", ["npg", "pg"])
def test_methods_without_limits(method):
    result = ck.solve(queue(None), method, tol=1e-4, max_iterations=3_000)
    assert result.status is Status.OPTIMAL
    assert result.objective == pytest.approx(average_lp(queue(None)), abs=1e-4)
    with pytest.raises(ValueError, match=f"method '{method}' ignores constraints"):
        ck.solve(queue(), method)


def test_a_first_order_method_where_parts_must_be_mixed():
    """No stationary policy of one class is optimal: the bound holds, and the message names the methods that mix."""
    cmdp = communicating(15)
    truth = average_lp(cmdp)
    assert ck.solve(cmdp).objective == pytest.approx(truth, abs=1e-5)
    result = ck.solve(cmdp, "pmd-pd", max_iterations=60)
    assert result.status is Status.ITERATION_LIMIT
    assert result.certificate.bound <= truth + 1e-9
    assert "'auto'" in result.message


# -- the command line ------------------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(cli, [str(a) for a in arguments])


@pytest.mark.parametrize("flags", [("--average",), ("--set", "average=true"), ("--set", "average=True")])
def test_averages_on_the_command_line(flags):
    found = json.loads(run("solve", "maintenance", *flags, "--json").output)
    cmdp = ck.problems.maintenance(average=True)
    assert found["objective"] == pytest.approx(average_lp(cmdp), abs=1e-6)
    shown = run("solve", "maintenance", *flags)
    assert shown.exit_code == 0
    assert "long-run average" in shown.output


def test_a_saved_model_under_averages(tmp_path):
    path, out = tmp_path / "machine.npz", tmp_path / "policy.npz"
    ck.problems.maintenance().save(path)
    assert run("solve", path, "--average", "--out", out).exit_code == 0
    assert run("certify", path, out, "--average").exit_code == 0
    assert run("certify", path, out).exit_code == 1  # not optimal for discounted sums
    assert "0.08" in run("diagnose", path, "--average").output
    points = json.loads(
        run("frontier", path, "--average", "--limit", "downtime", "--limits", "0.05,0.08", "--json").output
    )
    tight = ck.problems.maintenance(downtime_limit=0.05, average=True)
    assert points["points"][0]["upper"] == pytest.approx(average_lp(tight), abs=1e-4)


def test_limits_on_sums_must_be_given_anew():
    refused = run("solve", "garnet", "--average", "--limit", "cost 1=0.5")
    assert isinstance(refused.exception, ValueError)
    assert "the limit of 'cost 2' bounds the expected discounted sum" in str(refused.exception)
    found = run("solve", "garnet", "--average", "--limit", "cost 1=0.42", "--limit", "cost 2=0.45", "--json")
    cmdp = ck.problems.garnet().with_criterion(average=True).with_limits({"cost 1": 0.42, "cost 2": 0.45})
    assert json.loads(found.output)["objective"] == pytest.approx(average_lp(cmdp), abs=1e-6)


# -- words -----------------------------------------------------------------------------------------------------------


def test_the_long_run_beside_a_discounted_limit():
    shown = str(ck.solve(ck.problems.wireless()))
    assert "power: 1.63" in shown
    assert "average=True limits the long-run average itself" in shown
    assert "long run" not in str(ck.solve(ck.problems.wireless(average=True)))
    assert "long run" not in str(
        ck.solve(ck.problems.wireless(backlog_limit=5.0))
    )  # infeasible: no policy to advise on


@pytest.mark.parametrize("kind", [ck.AtMost, ck.AtLeast, ck.Equal])
@pytest.mark.parametrize("mixed", [{"average": True}, {"gamma": 0.9}, {"horizon": 12}])
def test_criteria_of_single_limits_are_refused_with_advice(kind, mixed):
    with pytest.raises(TypeError, match=r"one criterion.*Choose one for all, or a gamma close to 1"):
        kind(np.ones((6, 2)), 1.0, **mixed)


def test_two_criteria_for_one_model_are_refused_with_advice():
    with pytest.raises(ValueError, match=r"leave out gamma=0\.9, or average=True\. A model has one criterion"):
        ck.CMDP(np.ones((1, 2, 1)), cost=[[0.0, 1.0]], gamma=0.9, average=True)
    with pytest.raises(ValueError, match=r"leave out horizon=3, or average=True\. A model has one criterion"):
        ck.CMDP(np.ones((1, 2, 1)), cost=[[0.0, 1.0]], horizon=3, average=True)


# -- results that are used again -------------------------------------------------------------------------------------


def test_an_earlier_result_as_a_start():
    cmdp = queue()
    first = ck.solve(cmdp)
    for start, method in ((first, "auto"), (first, "pmd-pd"), (ck.solve(cmdp.with_criterion(gamma=0.99)), "auto")):
        moved = cmdp.with_limits(length=0.8)
        again = ck.solve(moved, method, start=start)
        assert again.status is Status.OPTIMAL
        assert again.objective == pytest.approx(average_lp(moved), abs=2e-6)


def test_files_and_tables(tmp_path):
    cmdp = queue()
    result = ck.solve(cmdp)
    cmdp.save(tmp_path / "model.npz")
    result.save(tmp_path / "result.npz")
    result.policy.save(tmp_path / "policy.npz")
    for name, words in (("model", "average"), ("result", "optimal"), ("policy", "randomises in 1 state")):
        shown = run("show", tmp_path / f"{name}.npz")
        assert shown.exit_code == 0
        assert words in shown.output.lower()
    policy = ck.TabularPolicy.load(tmp_path / "policy.npz")
    assert ck.certify(ck.CMDP.load(tmp_path / "model.npz"), policy).optimal(1e-9)
    evaluation = ck.evaluate(cmdp, policy)
    assert evaluation.occupancy.sum() == pytest.approx(1.0)
    assert evaluation.objective == pytest.approx(result.objective, abs=1e-12)


def test_frontier_and_diagnosis():
    cmdp = queue()
    found = ck.frontier(cmdp, "length", [0.5, 1.0, 2.0])
    truths = [average_lp(cmdp.with_limits(length=x)) for x in (0.5, 1.0, 2.0)]
    assert (found.lower <= np.array(truths) + 1e-9).all()
    assert (found.upper >= np.array(truths) - 1e-9).all()
    short = cmdp.with_limits(length=-0.5)
    diagnosis = ck.diagnose(short)
    assert not diagnosis.feasible
    assert "length" in str(diagnosis)
