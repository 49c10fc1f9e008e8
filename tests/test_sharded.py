"""Sharded models: the same answers as the assembled model, whatever the blocks; bad blocks named; files."""

import json
import re
import shutil
import weakref
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

import cmdpkit as ck
import cmdpkit.files
from cmdpkit.cli.main import cli
from cmdpkit.evaluation.backup import bellman
from cmdpkit.evaluation.bounds import bound_from_backup, macqueen_bound
from cmdpkit.run.budget import Budget
from cmdpkit.sharded import krylov
from cmdpkit.sharded import oracle as oracle_module
from cmdpkit.sharded.crew import Crew, InProcess
from cmdpkit.sharded.folder import Folder
from cmdpkit.sharded.mirror import MirrorShard
from cmdpkit.sharded.oracle import Oracle
from cmdpkit.sharded.shard import Shard
from cmdpkit.sharded.solve import Columns
from cmdpkit.sharded.subspace import SubspaceShard


def garnet(constraints=2, states=300, seed=3, gamma=0.9):
    return ck.problems.garnet(states, actions=3, successors=4, constraints=constraints, gamma=gamma, seed=seed)


def masked(seed=5):
    """A model in which some actions are missing, with Equal and Between, per step, and a start in one state."""
    rng = np.random.default_rng(seed)
    mask = rng.uniform(size=(60, 4)) < 0.7
    mask[:, 1] = True
    P = rng.dirichlet(np.ones(60) * 0.1, size=(60, 4))
    tables = rng.uniform(size=(3, 60, 4))
    limits = [ck.Equal(tables[1], 0.5, name="a", per_step=True), ck.Between(tables[2], 3.0, 6.0, name="b")]
    shape = sp.csr_array(P.reshape(240, 60))
    return ck.CMDP(shape, cost=tables[0], constraints=limits, gamma=0.9, initial=7, available=mask)


def shards(crew: Any) -> Any:
    return crew.backend.shards


def assembled(policy):
    return np.concatenate(list(policy))


def agrees(result, cmdp, tol):
    """The result against the assembled model, by solvers and proofs that know nothing of blocks."""
    reference = ck.solve(cmdp, tol=1e-8)
    assert result.status is ck.Status.OPTIMAL
    assert result.certificate.optimal(tol)
    scale = max(1.0, abs(reference.objective))
    assert abs(result.objective - reference.objective) <= 2.0 * tol * scale
    # No feasible policy does better than the bound, and the optimum is known
    better = cmdp.sense * (result.certificate.bound - reference.certificate.bound)
    assert better <= 1e-7 * scale
    own = ck.certify(cmdp, assembled(result.policy), result.multipliers)
    error = result.certificate.accuracy * scale + 1e-12 * scale
    assert abs(own.objective - result.objective) <= error
    limits = np.array([max(1.0, float(np.max(np.abs(c.bound)))) for c in cmdp.constraints])
    assert (
        abs(own.constraint_values - result.constraint_values) <= (result.certificate.accuracy + 1e-12) * limits
    ).all()
    assert own.optimal(tol)


@pytest.mark.parametrize("constraints", [0, 1, 2, 3])
def test_random_graphs_have_the_certified_optimum(constraints):
    cmdp = garnet(constraints)
    agrees(ck.solve(ck.ShardedCMDP.split(cmdp, 4), tol=1e-6), cmdp, 1e-6)


def test_queues_have_the_certified_optimum():
    cmdp = ck.problems.two_queues(capacity=8, gamma=0.95)
    agrees(ck.solve(ck.ShardedCMDP.split(cmdp, [0, 20, 30]), "columns", tol=1e-5), cmdp, 1e-5)


def test_missing_actions_and_limits_from_both_sides():
    cmdp = masked()
    result = ck.solve(ck.ShardedCMDP.split(cmdp, 3), tol=1e-6)
    agrees(result, cmdp, 1e-6)
    assert (assembled(result.policy)[~cmdp.pairs.mask] == 0.0).all()


def test_limits_that_cannot_be_met_are_refuted():
    cmdp = garnet(2)
    least = [
        ck.solve(cmdp.with_objective(cost=name).with_limits(dict.fromkeys(cmdp.names))).objective for name in cmdp.names
    ]
    tight = cmdp.with_limits({name: value * 1.001 for name, value in zip(cmdp.names, least, strict=True)})
    assert ck.solve(tight).status is ck.Status.INFEASIBLE
    result = ck.solve(ck.ShardedCMDP.split(tight, 3))
    assert result.status is ck.Status.INFEASIBLE
    proof = result.certificate
    y = proof.infeasibility
    assert (y >= 0.0).all()
    # The margin is attained by no policy: the minimum of y·V on the assembled model is at least as large
    mixed = tight._derived((), sum(w * np.asarray(c.values) for w, c in zip(y, tight.constraints, strict=True)), False)
    lowest = ck.solve(mixed, tol=1e-10).objective - float(y @ tight.limits)
    assert 0.0 < proof.infeasibility_margin <= lowest + 1e-9


def test_the_bound_of_a_backup_is_that_of_the_assembled_model():
    """Backups are bit for bit the same; the bound may lose a little more to rounding."""
    cmdp = garnet(2, states=500)
    model = ck.ShardedCMDP.split(cmdp, 4)
    crew = Crew.in_process(model)
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=(500, 3)), np.array([1.0, 0.3, 0.7])
    for shard, (first, last) in zip(shards(crew), zip(model.bounds, model.bounds[1:], strict=False), strict=True):
        shard.values[shard.own, :3] = values[first:last]
    crew.fetch(crew.submit("install", after=crew.submit("announce", send=True)))
    oracle = Oracle(crew, np.zeros(3))
    backup = oracle.backup(weights)
    mix = weights[0] * values[:, 0] + weights[1] * values[:, 1] + weights[2] * values[:, 2]
    cost = weights[0] * cmdp.costs[0] + weights[1] * cmdp.costs[1] + weights[2] * cmdp.costs[2]
    here = bellman(cmdp, cost, mix, np.zeros(500, dtype=np.int32))
    assert (backup.low, backup.high, backup.moved) == (here.lowest, here.highest, here.moved)
    np.testing.assert_array_equal(np.concatenate([s._backup[s._room] for s in shards(crew)]), here.values)
    mine = macqueen_bound(cmdp, weights, mix)
    assert mine - 1e-11 * abs(mine) <= backup.bound <= mine + 1e-12 * abs(mine)
    assert bound_from_backup(cmdp, weights, mix, here) == pytest.approx(mine, abs=1e-12)
    # What a block computes for its halo is what the owner has, to the last bit
    owned = np.concatenate([s.mix[s.own] for s in shards(crew)])
    for shard in shards(crew):
        for source in shard.exchange.sources:
            states = np.arange(source.end - source.begin) if source.whole else source.states
            np.testing.assert_array_equal(
                shard.mix[source.begin : source.end], owned[model.bounds[source.block] + states]
            )


@pytest.mark.parametrize("blocks", [4, [0, 100, 400], [0, 120]])  # in the last, two tables of one block take turns
def test_joined_messages_are_the_values_of_all_blocks(blocks):
    """Value iteration from one table of all messages, from messages in inboxes, and of the assembled model."""
    cmdp = garnet(2, states=500)
    model = ck.ShardedCMDP.split(cmdp, blocks)
    weights, value = np.array([1.0, 0.3, 0.7]), np.zeros(500)
    cost = weights[0] * cmdp.costs[0] + weights[1] * cmdp.costs[1] + weights[2] * cmdp.costs[2]
    for _ in range(3):
        value = bellman(cmdp, cost, value, np.zeros(500, dtype=np.int32)).values
    for join in (False, True):
        crew = Crew.in_process(model)
        assert [shard.own for shard in shards(crew)] == [slice(*pair) for pair in pairwise(model.bounds)]
        step = crew.submit("forget_mix", send=True, join=join)
        step, _ = crew.repeat("backup", [(weights, 0.0, True, True)] * 3, step, send=True, join=join)
        assert (step.joined is not None) == join
        np.testing.assert_array_equal(np.concatenate([s.mix[s.own] for s in shards(crew)]), value)
        found = crew.submit("backup", weights, 0.0, True, False, after=step).numbers
        here = bellman(cmdp, cost, value, np.zeros(500, dtype=np.int32))
        assert (min(f.low for f in found), max(f.high for f in found)) == (here.lowest, here.highest)


def test_proved_values_contain_the_exact_ones():
    """Also of values that are far from exact: the interval is then wide, never wrong."""
    cmdp = garnet(2, states=100)
    model = ck.ShardedCMDP.split(cmdp, 3)
    crew = Crew.in_process(model)
    oracle = Oracle(crew, 1e-6 * np.ones(3))
    oracle.minimise(np.array([1.0, 0.5, 0.5]))
    crew.each("keep", "it")
    choice = np.concatenate([shard.kept["it"] for shard in shards(crew)])
    exact = ck.evaluate(cmdp, cmdp.pairs.one_hot(choice))
    truth = np.array([-exact.objective, *exact.constraint_values])
    for accuracy in (1.0, 1e-3, 1e-9):
        for shard in shards(crew):
            shard.values[:] = 0.0
        values, errors = oracle.prove("it", accuracy * np.ones(3))
        assert (abs(values - truth) <= errors).all()
        assert (errors <= accuracy * 1.01).all()
    crew.each("spread", "uniform")
    exact = ck.evaluate(cmdp, cmdp.pairs.uniform())
    values, errors = oracle.prove("uniform", 1e-9 * np.ones(3))
    assert (abs(values - [-exact.objective, *exact.constraint_values]) <= errors).all()
    assert errors.max() < 2e-9


def test_visits_are_those_of_the_assembled_model():
    cmdp = ck.problems.two_queues(capacity=6, gamma=0.9)
    crew = Crew.in_process(ck.ShardedCMDP.split(cmdp, [0, 10, 17]))
    crew.each("spread", "uniform")
    Oracle(crew, np.zeros(3)).visits("uniform", 1e-12)
    visits = np.concatenate([shard.visits for shard in shards(crew)])
    exact = ck.evaluate(cmdp, cmdp.pairs.uniform()).occupancy.sum(axis=1) / (1.0 - cmdp.gamma)
    np.testing.assert_allclose(visits, exact, atol=1e-10)


def crew_of_queues(gamma, capacity=19):
    cmdp = ck.problems.two_queues(capacity=capacity, gamma=gamma)
    crew = Crew.in_process(ck.ShardedCMDP.split(cmdp, [0, 150, 220]))
    crew.each("spread", "uniform")
    return cmdp, crew


def test_slow_chains_are_evaluated_by_gmres_in_a_fraction_of_the_sweeps(monkeypatch):
    """Queues with γ = 0.999 mix slowly. The values are those of a direct solver, within the proved errors."""
    cmdp, crew = crew_of_queues(0.999)
    exact = ck.evaluate(cmdp, cmdp.pairs.uniform())
    truth = np.array([cmdp.sense * exact.objective, *exact.constraint_values])
    allowed = 1e-7 * np.abs(truth)
    used = {}
    for slow in (krylov.SLOW, 10**9):
        monkeypatch.setattr(oracle_module, "SLOW", slow)
        crew.each("reset")
        crew.connect()
        crew.each("spread", "uniform")
        oracle = Oracle(crew, np.zeros(truth.size))
        values, errors = oracle.prove("uniform", allowed)
        assert (abs(values - truth) <= errors).all()
        assert (errors <= 1.01 * allowed).all()
        sweeps = oracle.sweeps
        oracle.visits("uniform", 1e-8)
        visits = np.concatenate([shard.visits for shard in shards(crew)])
        np.testing.assert_allclose(visits, exact.occupancy.sum(axis=1) / (1.0 - cmdp.gamma), atol=1e-5)
        used[slow] = np.array([sweeps, oracle.sweeps - sweeps])
    assert (3 * used[krylov.SLOW] < used[10**9]).all()


def test_gmres_that_does_not_help_is_given_up(monkeypatch):
    """A product that fails spoils nothing: the sweeps go on from where they were."""
    cmdp, crew = crew_of_queues(0.99, capacity=14)
    exact = ck.evaluate(cmdp, cmdp.pairs.uniform())
    product = SubspaceShard.value_product

    def spoilt(self, inbox, form):
        numbers, messages = product(self, inbox, form)
        return numbers._replace(sums=np.full_like(numbers.sums, np.nan)), messages

    monkeypatch.setattr(SubspaceShard, "value_product", spoilt)
    values, errors = Oracle(crew, np.zeros(3)).prove("uniform", 1e-6 * np.ones(3))
    assert (errors < 1.1e-6).all()
    assert abs(values[0] - cmdp.sense * exact.objective) <= errors[0]


def test_queues_that_mix_slowly_have_the_certified_optimum():
    cmdp = ck.problems.two_queues(capacity=12, gamma=0.995)
    agrees(ck.solve(ck.ShardedCMDP.split(cmdp, [0, 60, 110]), tol=1e-5), cmdp, 1e-5)


def test_a_lattice_exchanges_only_its_boundary():
    """A block of whole rows needs the row before and the row after it, and nothing else."""
    cmdp = ck.problems.two_queues(capacity=9, gamma=0.9)
    crew = Crew.in_process(ck.ShardedCMDP.split(cmdp, [0, 30, 70]))
    halos = [[(source.block, source.end - source.begin) for source in s.exchange.sources] for s in shards(crew)]
    assert halos == [[(1, 10)], [(0, 10), (2, 10)], [(1, 10)]]
    before = crew.each("traffic")
    crew.fetch(crew.submit("announce", send=True))
    after = crew.each("traffic")
    assert [b.sent - a.sent for a, b in zip(before, after, strict=True)] == [240, 480, 240]  # 10 states, 3 values


class Watched(InProcess):
    """Counts the messages that are still held when numbers are asked for."""

    sent: list[Any]
    most = 0

    def call(self, *args):
        done = super().call(*args)
        self.sent += [weakref.ref(message) for _, messages in done for message in messages]
        return done

    def get(self, handles):
        self.most = max(self.most, sum(ref() is not None for ref in self.sent))
        return super().get(handles)


def test_messages_that_were_read_are_let_go():
    """However many sweeps are submitted ahead, the messages of the last one are all that takes memory."""
    model = ck.ShardedCMDP.split(ck.problems.garnet(60, actions=3, constraints=1, gamma=0.99, seed=2), 3)
    backend = Watched(lambda number: MirrorShard(model, number), 3)
    backend.sent = []
    crew = Crew(model, backend)
    crew.each("spread", "uniform")
    oracle = Oracle(crew, np.zeros(2))
    oracle.prove("uniform", np.full(2, 1e-6))
    oracle.visits("uniform", 1e-6)
    assert oracle.sweeps > 2 * oracle_module.LARGEST_BATCH
    assert len(backend.sent) > 100
    assert backend.most <= 2 * 6  # of a step and of the one before it, at most to both of the others


def test_the_number_of_blocks_is_all_that_the_numbers_depend_on():
    cmdp = garnet(2)
    one, same, other = (ck.solve(ck.ShardedCMDP.split(cmdp, blocks), tol=1e-5) for blocks in (4, 4, 3))
    assert one.objective == same.objective
    np.testing.assert_array_equal(assembled(one.policy), assembled(same.policy))
    assert one.objective == pytest.approx(other.objective, rel=2e-5)


# -- PMD-PD ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("constraints", [1, 2])
def test_mirror_steps_on_blocks_are_those_of_the_exact_learner(constraints):
    """The same loop and rule; the iterates differ by the accuracy of evaluations, which the rule asks for."""
    cmdp = garnet(constraints)
    models = ck.ShardedCMDP.split(cmdp, 4), cmdp
    result, exact = (ck.solve(model, "pmd-pd", tol=1e-5, growth=3.0) for model in models)
    assert result.iterations == exact.iterations
    np.testing.assert_allclose(result.history.objective, exact.history.objective, rtol=1e-4)
    np.testing.assert_allclose(result.history.multipliers, exact.history.multipliers, atol=1e-3)
    np.testing.assert_allclose(result.history.constraint_values, exact.history.constraint_values, rtol=1e-3)
    agrees(result, cmdp, 1e-5)


def test_mirror_steps_with_missing_actions_and_kept_anchors():
    """Candidates that are rejected start again from their anchor, with backups: on two queues that happens."""
    for cmdp in (masked(), ck.problems.two_queues(capacity=8, gamma=0.95)):
        agrees(ck.solve(ck.ShardedCMDP.split(cmdp, 3), "pmd-pd", tol=1e-4), cmdp, 1e-4)


def test_mirror_steps_find_that_limits_cannot_be_met():
    cmdp = garnet(2, states=100, seed=1).with_limits({"cost 1": 1.0})
    result = ck.solve(ck.ShardedCMDP.split(cmdp, 3), "pmd-pd")
    assert result.status is ck.Status.INFEASIBLE
    assert result.certificate.infeasibility_margin > 0.0


# -- files -----------------------------------------------------------------------------------------------------------


def test_models_and_policies_are_written_in_blocks(tmp_path):
    cmdp = masked()
    model = ck.ShardedCMDP.split(cmdp, 3)
    model.save(tmp_path / "model")
    again = ck.ShardedCMDP.load(tmp_path / "model")
    assert repr(again) == repr(model)
    assert [(c.symbol, c.bound, c.per_step) for c in again.constraints] == [
        (c.symbol, c.bound, c.per_step) for c in cmdp.constraints
    ]
    one, other = (ck.solve(m, tol=1e-5) for m in (model, again))
    assert one.objective == other.objective
    one.policy.save(tmp_path / "policy")
    loaded = ck.ShardedPolicy.load(tmp_path / "policy")
    np.testing.assert_array_equal(assembled(loaded), assembled(one.policy))
    np.testing.assert_array_equal(loaded.probabilities_of(33), assembled(one.policy)[33])
    assert sorted(path.name for path in (tmp_path / "policy").iterdir())[-1] == "policy.json"


def test_a_run_continues_from_its_folder_to_the_same_numbers(tmp_path):
    """Stopped after some questions, as if the process were gone; and stopped between two files."""
    model = ck.ShardedCMDP.split(garnet(2), 3)
    straight = ck.solve(model, tol=1e-6)
    part = ck.solve(model, tol=1e-6, max_iterations=4, checkpoint=tmp_path)
    assert part.status is ck.Status.ITERATION_LIMIT
    assert np.isfinite(part.certificate.bound)
    (tmp_path / "state-000009-00001.npz").write_bytes(b"half")  # of a question that was not finished
    whole = ck.solve(model, tol=1e-6, checkpoint=tmp_path)
    assert whole.iterations == straight.iterations
    assert whole.objective == straight.objective
    assert whole.certificate.bound == straight.certificate.bound
    np.testing.assert_array_equal(assembled(whole.policy), assembled(straight.policy))
    np.testing.assert_array_equal(whole.history.bound, straight.history.bound)
    with pytest.raises(ValueError, match="another run: its model"):
        ck.solve(ck.ShardedCMDP.split(garnet(2, seed=4), 3), tol=1e-6, checkpoint=tmp_path)
    state = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / f"{state['name']}-00001.npz").unlink()
    with pytest.raises(ValueError, match="00001"):
        ck.solve(model, tol=1e-6, checkpoint=tmp_path)


def checkpoints_of(monkeypatch, folder, solve):
    """Solve, and keep a copy of every state that the run leaves in its folder."""
    copies, save = [], Folder.save

    def kept(self, *args, **given):
        save(self, *args, **given)
        copies.append(folder.with_name(f"copy-{len(copies)}"))
        shutil.copytree(folder, copies[-1])

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "save", kept)
        patch.setattr(Folder, "is_due", True)
        return solve(folder), copies


def infeasible():
    cmdp = garnet(2, states=60, seed=1)
    return cmdp.with_limits({"cost 1": 1.0})


@pytest.mark.parametrize(
    ("make", "method"),
    [
        (lambda: garnet(2, states=60), "auto"),
        (masked, "auto"),
        (infeasible, "auto"),
        (lambda: garnet(1, states=60), "pmd-pd"),
        (lambda: ck.problems.two_queues(capacity=5, gamma=0.9), "pmd-pd"),
        (infeasible, "pmd-pd"),
    ],
)
def test_every_checkpoint_leads_to_the_same_numbers(monkeypatch, tmp_path, make, method):
    """A driver can be lost after any of them: all that follows is in the files."""
    model = ck.ShardedCMDP.split(make(), 3)
    solve = partial(ck.solve, model, method, tol=1e-4)
    straight, copies = checkpoints_of(monkeypatch, tmp_path / "run", lambda folder: solve(checkpoint=folder))
    assert len(copies) >= 2
    for folder in {*copies[:: 1 + len(copies) // 8], *copies[-2:]}:
        again = solve(checkpoint=folder, resume=True)
        assert again.status is straight.status
        assert repr(again.certificate) == repr(straight.certificate)
        for name in straight.history.columns:
            if name != "time":
                np.testing.assert_array_equal(again.history[name], straight.history[name])
        np.testing.assert_array_equal(assembled(again.policy), assembled(straight.policy))


def test_a_run_is_resumed_only_where_there_is_one(tmp_path):
    model = ck.ShardedCMDP.split(garnet(1, states=60), 2)
    with pytest.raises(FileNotFoundError, match="no run in"):
        ck.solve(model, checkpoint=tmp_path / "new", resume=True)
    part = ck.solve(model, "pmd-pd", max_iterations=3, checkpoint=tmp_path)
    assert part.iterations == 3
    with pytest.raises(FileExistsError, match="already holds a run"):
        ck.solve(model, "pmd-pd", checkpoint=tmp_path, resume=False)
    with pytest.raises(ValueError, match="another run: its rule"):
        ck.solve(model, "pmd-pd", checkpoint=tmp_path, growth=2.0)
    with pytest.raises(ValueError, match="another run: its method"):
        ck.solve(model, checkpoint=tmp_path)
    head = json.loads((tmp_path / "run.json").read_text())
    del head["content"]["rule"]["step"]
    (tmp_path / "run.json").write_text(json.dumps(head))
    with pytest.raises(ValueError, match=r"not a checkpoint .*rule_step"):
        ck.solve(model, "pmd-pd", checkpoint=tmp_path)


def test_pmd_pd_starts_from_multipliers_and_takes_its_rule():
    cmdp = garnet(1, states=60)
    model = ck.ShardedCMDP.split(cmdp, 2)
    given = {"initial_multipliers": [0.7], "growth": 2.0, "max_iterations": 4}
    here, there = (ck.solve(m, "pmd-pd", tol=1e-7, **given) for m in (cmdp, model))
    np.testing.assert_allclose(there.history.multipliers, here.history.multipliers, rtol=1e-2)
    rule = ck.solve(model, ck.rules.GrowingPMDPD(growth=2.0), tol=1e-7, max_iterations=4, initial_multipliers=[0.7])
    np.testing.assert_array_equal(rule.history.multipliers, there.history.multipliers)


def same_results(one, other):
    assert one.to_dict() == other.to_dict()
    assert repr(one.certificate) == repr(other.certificate)
    for name in one.history.columns:
        np.testing.assert_array_equal(one.history[name], other.history[name])
    np.testing.assert_array_equal(assembled(one.policy), assembled(other.policy))


def test_results_are_saved_in_blocks(tmp_path):
    """Loaded they are the same; a folder that holds one result takes the next, and keeps the first until then."""
    model = ck.ShardedCMDP.split(masked(), 3)
    one, other = (ck.solve(model, tol=tol) for tol in (1e-3, 1e-5))
    folder = tmp_path / "result"
    one.save(folder)
    same_results(ck.Result.load(folder), one)
    loaded = ck.Result.load(folder)
    loaded.save(folder)  # to where it is
    same_results(ck.Result.load(folder), one)
    other.save(folder)
    same_results(ck.Result.load(folder), other)
    assert len(list(folder.iterdir())) == 2
    copy = ck.Result.load(folder)
    copy.save(tmp_path / "copy")
    same_results(ck.Result.load(tmp_path / "copy"), other)
    one.save(tmp_path / "summary.json")
    shown = CliRunner().invoke(cli, ["show", str(folder), "--json"])
    assert json.loads(shown.output)["policy"] == {"states": 60, "actions": 4, "blocks": 3, "weights": [1.0]}
    with pytest.raises(ValueError, match=r"a folder; give .* without \.npz"):
        one.save(tmp_path / "result.npz")
    with pytest.raises(ValueError, match="is in blocks"):
        one.to_dict(policy=True)
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="holds a sharded model"):
        one.save(tmp_path / "model")


def test_the_command_line_solves_a_folder(tmp_path):
    model = ck.ShardedCMDP.split(masked(), 3)
    folder, out = str(tmp_path / "model"), str(tmp_path / "result")
    model.save(folder)
    command = ["solve", folder, "--tol", "1e-3", "--json", "--out", out, "--checkpoint", str(tmp_path / "run")]
    first, again = (CliRunner().invoke(cli, command) for _ in range(2))  # the second continues, and ends at once
    expected = ck.solve(model, tol=1e-3)
    assert (first.exit_code, json.loads(first.output)["objective"]) == (0, expected.objective)
    assert json.loads(again.output)["gap"] == expected.certificate.gap
    for mine, theirs in zip(ck.Result.load(out).policy, expected.policy, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model", "--limit", "cost=3"], "--limit does not apply to .*model, a model in blocks"),
        (["model", "--sample"], "--sample does not apply"),
        (["model", "--method", "lp"], "does not know sharded models"),
        (["model", "--out", "model"], "holds a sharded model; save the result to another folder"),
        (["model", "--out", "policy.npz"], "without .npz"),
        (["model", "--out", "file"], "give file a name without .npz, of no file"),
        (["model", "--checkpoint", "model"], "model holds a sharded model; choose another folder for the checkpoint"),
        (["empty"], "holds no model that ShardedCMDP.save has written"),
    ],
)
def test_the_command_line_refuses_what_blocks_do_not_take(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    ck.ShardedCMDP.split(masked(), 3).save("model")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setattr(Crew, "submit", lambda *_, **__: pytest.fail("a run has been started"))
    found = CliRunner().invoke(cli, ["solve", *arguments])
    assert isinstance(found.exception, ValueError | FileNotFoundError)
    assert re.search(message, str(found.exception))


@pytest.mark.parametrize("command", [["frontier", "--limit", "a"], ["diagnose"], ["explore"]])
def test_other_commands_say_that_blocks_can_only_be_solved(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    ck.ShardedCMDP.split(masked(), 3).save("model")
    found = CliRunner().invoke(cli, [*command, "model"])
    assert "model is a folder; models in blocks can only be solved" in str(found.exception)


def test_a_result_is_saved_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    model = ck.ShardedCMDP.split(masked(), 3)
    one, other = (ck.solve(model, tol=tol) for tol in (1e-3, 1e-5))
    one.save(tmp_path / "result")
    write, left = cmdpkit.files.write_whole, [0]

    def fails(path, how):
        left[0] -= 1
        if left[0] < 0:
            raise OSError("no space left on device")
        write(path, how)

    for allowed in range(5):  # three blocks, the description of the policy, the result itself
        left[0] = allowed
        with monkeypatch.context() as patch:
            patch.setattr(cmdpkit.files, "write_whole", fails)
            with pytest.raises(OSError, match="no space"):
                other.save(tmp_path / "result")
        same_results(ck.Result.load(tmp_path / "result"), one)
    policy = ck.Result.load(tmp_path / "result").policy
    (policy.folder / policy.files[1]).unlink()
    with pytest.raises(ValueError, match="not complete: policy-0-00001"):
        ck.Result.load(tmp_path / "result")


# -- what is refused -------------------------------------------------------------------------------------------------


def ring(first, last, states=12):
    s = np.repeat(np.arange(first, last), 2)
    to = (s + np.tile([0, 1], last - first)) % states
    P = sp.csr_array((np.ones(to.size), (np.arange(to.size), to)), shape=(to.size, states))
    return ck.Block(P, np.ones((2, last - first, 2)))


def spoilt(change):
    def build(first, last):
        block = ring(first, last)
        return change(block) if first == 8 else block

    return ck.ShardedCMDP(
        build, states=12, actions=2, blocks=3, gamma=0.9, constraints=[ck.AtMost(None, 5.0, name="wear")]
    )


def scaled(block, factor):
    P = block.transitions.copy()
    P.data[3] *= factor
    return block._replace(transitions=P)


def with_nan(block):
    table = block.quantities.copy()
    table[1, 2, 1] = np.nan
    return block._replace(quantities=table)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: scaled(b, 0.5), r"block 2 \(states 8 to 11\): the probabilities of state 9, action 1 sum to 0.5"),
        (lambda b: scaled(b, -1.0), "block 2 .*from state 9, action 1 to state 10 is -1"),
        (lambda b: scaled(b, np.nan), "block 2 .*from state 9, action 1 to state 10 is nan"),
        (with_nan, "block 2 .*constraint 'wear' of state 10, action 1 is nan"),
        (lambda b: b._replace(transitions=b.transitions[:6]), r"block 2 .*shape \(6, 12\).*\(8, 12\)"),
        (lambda b: b._replace(transitions=b.transitions[:, :11]), r"block 2 .*shape \(8, 11\).*\(8, 12\)"),
        (lambda b: b._replace(transitions=b.transitions.toarray()), "block 2 .*scipy.sparse"),
        (lambda b: b._replace(quantities=b.quantities[:, :3]), r"block 2 .*shape \(2, 3, 2\).*\(2, 4, 2\)"),
        (lambda b: b._replace(initial=np.ones(3)), r"block 2 .*initial has shape \(3,\)"),
        (lambda b: b._replace(initial=-np.ones(4)), "block 2 .*initial of state 8 is -1"),
        (lambda b: None, "block 2 .*must return a cmdpkit.Block, not NoneType"),
    ],
)
def test_bad_blocks_are_named(change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ck.solve(spoilt(change))


def test_columns_out_of_range_are_named():
    def wild(block):
        P = block.transitions.copy()
        P.indices[5] = 99
        return block._replace(transitions=P)

    with pytest.raises(ValueError, match=r"block 2 .*malformed"):
        ck.solve(spoilt(wild))


def test_a_start_that_does_not_sum_to_one_is_refused():
    with pytest.raises(ValueError, match=r"sums to 1\.33333333333 over all blocks"):
        ck.solve(spoilt(lambda b: b._replace(initial=np.full(4, 1.0 / 6.0))))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"average": True}, "discounted sums only, not average=True"),
        ({"horizon": 5}, "discounted sums only, not horizon=5"),
        ({"gamma": 1.0}, "below 1"),
        ({"blocks": 13}, "13 blocks, but only 12 states"),
        ({"blocks": [0, 5, 5]}, "increasing"),
        ({"blocks": [1, 5]}, "begin at 0"),
        ({"initial": 12}, "not one of the states 0 to 11"),
        ({"build": 3}, "callable"),
        ({"constraints": [ck.AtMost(np.ones((12, 2)), 1.0)]}, "values come from build"),
        ({"constraints": [ck.AtMost(None, 1.0, stage=2)]}, "one stage"),
    ],
)
def test_models_that_are_not_supported_are_refused(settings, message):
    usual = {"build": ring, "states": 12, "actions": 2, "blocks": 3, "gamma": 0.9}
    with pytest.raises((ValueError, TypeError), match=message):
        ck.ShardedCMDP(**(usual | settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "lp"}, "'lp' does not know sharded models"),
        ({"sampling": ck.Sampling()}, "sampling is not for a ShardedCMDP"),
        ({"deterministic": True}, "deterministic is not for"),
        ({"step": 1.0}, "unknown option 'step'"),
        ({"workers": 2}, 'give cluster="local"'),
        ({"method": "pmd-pd", "step": 1.0}, "growing steps .*leave out 'step'"),
        ({"method": "pmd-pd", "steps": "fixed"}, "growing steps .*leave out steps='fixed'"),
        ({"method": "pmd-pd", "inner_steps": 2}, "leave out 'inner_steps'"),
        ({"method": "pmd-pd", "growth": 0.5}, "growth must be"),
        ({"method": "pmd-pd", "initial_multipliers": [-1.0]}, "initial_multipliers"),
        ({"method": ck.rules.PMDPD()}, "does not know sharded models"),
        ({"tol": 0.0}, "tol must be positive"),
        ({"resume": True}, "resume needs checkpoint, the folder"),
    ],
)
def test_arguments_that_are_not_supported_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ck.solve(spoilt(lambda b: b), **settings)


def test_other_models_refuse_a_cluster_or_blocks():
    with pytest.raises(ValueError, match="discounted"):
        ck.ShardedCMDP.split(ck.problems.two_queues(capacity=3, average=True), 2)


# -- ends ------------------------------------------------------------------------------------------------------------


def test_a_run_whose_time_is_up_has_a_valid_certificate():
    cmdp = garnet(2)
    result = ck.solve(ck.ShardedCMDP.split(cmdp, 3), tol=1e-9, time_limit=0.0)
    assert result.status is ck.Status.TIME_LIMIT
    exact = ck.evaluate(cmdp, assembled(result.policy))
    assert abs(exact.objective - result.objective) <= result.certificate.accuracy * abs(result.objective)


def test_a_mixture_is_returned_where_its_policy_is_not_proved(monkeypatch):
    """Both ways of the answer are valid: a stationary policy with the same values, and the mixture itself."""
    cmdp = garnet(1)
    model = ck.ShardedCMDP.split(cmdp, 3)
    run = Columns(Crew.in_process(model), 1e-6, Budget())
    monkeypatch.setattr(Oracle, "visits", lambda self, name, accuracy: self.crew.each("depart") and None)
    monkeypatch.setattr(Shard, "depart", lambda self, _: (setattr(self, "visits", np.ones(self.states)), []))
    outcome = run.solve()
    assert outcome.status is ck.Status.OPTIMAL
    assert not outcome.policy.is_stationary
    parts = [
        ck.evaluate(cmdp, np.concatenate([outcome.policy.block(b, part) for b in range(3)])).objective
        for part in range(outcome.policy.weights.size)
    ]
    assert outcome.policy.weights @ parts == pytest.approx(outcome.certificate.objective, rel=1e-7)
    with pytest.raises(ValueError, match="mixture of 2"):
        list(outcome.policy)


def test_split_keeps_the_limits():
    cmdp = masked()
    model = ck.ShardedCMDP.split(cmdp, 2)
    assert [replace(c, values=None).bound for c in cmdp.constraints] == [c.bound for c in model.constraints]
    crew = Crew.in_process(model)
    np.testing.assert_array_equal(crew.model.cost_sizes, cmdp.cost_sizes)
    np.testing.assert_array_equal(crew.model.spans, cmdp.spans)
    assert crew.model.row_sums == cmdp.row_sums


@pytest.mark.parametrize(("objective", "limits"), [(1.0, [0.0]), (0.0, []), (0.0, [1.0])])
def test_costs_that_are_zero_need_no_sweeps(objective, limits):
    """No error is allowed in their values, and none is there."""
    rng = np.random.default_rng(0)
    P, c = rng.dirichlet(np.ones(12), size=(12, 2)), rng.random((2, 12, 2))
    cmdp = ck.CMDP(P, cost=objective * c[0], constraints=[ck.AtMost(x * c[1], 7.0) for x in limits], gamma=0.9)
    found = ck.solve(ck.ShardedCMDP.split(cmdp, 3), "pmd-pd", tol=1e-4, time_limit=20.0)
    assert found.status is ck.Status.OPTIMAL
    assert found.objective == pytest.approx(ck.solve(cmdp).objective, abs=2e-4)
