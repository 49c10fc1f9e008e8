"""Sharded models on the workers of a cluster: the same bits on any number of them, and after losses."""

import os
import signal
import subprocess
import sys
import threading
import time
import types
from functools import partial

import numpy as np
import psutil
import pytest

import cmdpkit as ck
from cmdpkit.cluster.actors import Workers
from cmdpkit.cluster.faults import BlocksLost
from cmdpkit.cluster.session import connect
from cmdpkit.run.budget import Budget
from cmdpkit.sharded.crew import Crew
from cmdpkit.sharded.first_order import FirstOrder
from cmdpkit.sharded.mirror import build_shard
from cmdpkit.sharded.oracle import Oracle
from cmdpkit.sharded.solve import Columns

pytest.importorskip("ray")

TOL = 1e-2  # the fewer sweeps, the sooner


@pytest.fixture(scope="module")
def cluster():
    with connect("local", workers=2, object_store=200 * 2**20):
        yield


@pytest.fixture(scope="module")
def model():
    return ck.ShardedCMDP.split(ck.problems.garnet(400, actions=3, constraints=2, gamma=0.9, seed=1), 4)


@pytest.fixture(scope="module")
def reference(model):
    return ck.solve(model, tol=TOL)


def numbers(result):
    proof = result.certificate
    return [
        *(proof.objective, proof.bound, proof.gap, proof.violation, proof.accuracy),
        *(proof.multipliers.tolist(), proof.constraint_values.tolist()),
        *(result.history.bound.tolist(), result.iterations),
    ]


def same(result, reference):
    assert numbers(result) == numbers(reference)
    for mine, theirs in zip(result.policy, reference.policy, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.fixture(scope="module")
def pair(cluster, model):
    """Two workers with two blocks each."""
    hosts = Workers(partial(build_shard, model, 1), model.blocks, 2)
    yield hosts
    hosts.close()


def run(model, hosts, **settings):
    return Columns(Crew(model, hosts), TOL, **({"budget": Budget()} | settings)).solve()


def test_two_workers_have_the_result_of_one_process(model, pair, reference):
    same(run(model, pair), reference)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 4])
def test_results_do_not_depend_on_the_number_of_workers(cluster, model, reference, workers):
    same(ck.solve(model, tol=TOL, cluster="local", workers=workers), reference)


def test_errors_of_the_user_name_the_first_block(cluster, monkeypatch):
    """Of several blocks that fail, always the same one is named."""

    def broken(first, last):
        raise ZeroDivisionError("late") if first else ValueError("bad")

    module = types.ModuleType("not_on_the_workers")
    exec("def elsewhere(first, last): return None", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    elsewhere = module.__dict__["elsewhere"]
    with pytest.raises(RuntimeError, match=r"a worker cannot load .*ModuleNotFoundError.*installed on every node"):
        ck.solve(ck.ShardedCMDP(elsewhere, states=9, actions=1, blocks=1, gamma=0.5), cluster="local", workers=1)
    with pytest.raises(ValueError, match=r"block 0 \(states 0 to 4\): bad"):
        ck.solve(ck.ShardedCMDP(broken, states=10, actions=1, blocks=2, gamma=0.5), cluster="local", workers=1)


def test_mirror_steps_do_not_depend_on_workers(model, pair):
    alone, shared = (FirstOrder(crew, TOL, Budget()).solve() for crew in (Crew.in_process(model), Crew(model, pair)))
    assert shared.certificate.objective == alone.certificate.objective
    np.testing.assert_array_equal(shared.history.objective, alone.history.objective)
    np.testing.assert_array_equal(shared.history.multipliers, alone.history.multipliers)


def test_gmres_does_not_depend_on_workers(cluster):
    """Where chains mix slowly, inner products over all blocks are summed in the same order anywhere."""
    model = ck.ShardedCMDP.split(ck.problems.two_queues(capacity=8, gamma=0.99), 3)
    here = Crew.in_process(model)
    hosts = Workers(partial(build_shard, model, 1), model.blocks, 2)
    found = []
    for crew in (here, Crew(model, hosts)):
        crew.each("spread", "uniform")
        oracle = Oracle(crew, np.zeros(3))
        values, errors = oracle.prove("uniform", 1e-2 * np.ones(3))
        found.append([values.tolist(), errors.tolist(), oracle.sweeps])
    hosts.close()
    assert found[0] == found[1]
    assert found[0][2] < 150  # by sweeps alone more than SLOW


class Killer:
    """Kills a worker with SIGKILL when a run has asked so many questions, each time it comes there."""

    def __init__(self, hosts, times, after):
        self.hosts, self.times, self.after, self.kills = hosts, times, after, 0

    def __call__(self, snapshot):
        if snapshot.iteration >= self.after and self.kills < self.times:
            victim = self.hosts.processes[self.kills % 2]
            self.kills += 1
            threading.Timer(0.02, os.kill, (victim, signal.SIGKILL)).start()  # in the middle of the next question


@pytest.mark.parametrize("checkpoint", [False, True])
def test_workers_that_are_killed_change_nothing(model, pair, reference, tmp_path, checkpoint):
    killer = Killer(pair, 1, 2)
    outcome = run(model, pair, budget=Budget(watch=killer), checkpoint=tmp_path if checkpoint else None)
    assert killer.kills == 1
    assert "built again" in outcome.note
    same(outcome, reference)


def test_lost_blocks_are_named_and_built_again(model, pair):
    crew = Crew(model, pair)
    os.kill(pair.processes[1], signal.SIGKILL)
    time.sleep(0.2)
    with pytest.raises(BlocksLost, match="blocks 2, 3 lost"):
        crew.each("traffic")
    crew.repair()
    assert len(crew.each("traffic")) == 4


def test_workers_end_when_they_are_let_go(model, pair):
    before = pair.processes
    pair.close()
    for _ in range(200):
        if not any(os.path.exists(f"/proc/{pid}") for pid in before):
            break
        time.sleep(0.05)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in before)


# -- a program of its own, with a private cluster -------------------------------------------------------------------

PROGRAM = """
import sys, time, cmdpkit as ck

def tell(news):
    print("iteration", news.iteration, flush=True)
    time.sleep(0.3)

model = ck.ShardedCMDP.split(ck.problems.garnet(400, actions=3, constraints=2, gamma=0.9, seed=1), 4)
place = {"cluster": "local", "workers": 2, "checkpoint": sys.argv[1]}
result = ck.solve(model, tol=%r, callback=tell, **place)
print(result.status.name, result.certificate.gap < 1.0, flush=True)
"""


def started(folder):
    """The program after its second iteration, and all processes of its cluster."""
    free = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {"TMPDIR": str(folder)}
    command = [sys.executable, "-c", PROGRAM % TOL, str(folder / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=free)
    for line in process.stdout:
        if line == "iteration 2\n":
            others = psutil.Process(process.pid).children(recursive=True)
            assert sum(other.name() == "ray::Host" for other in others) == 2
            return process, others
    raise AssertionError("the program ended early")


def alive(processes):
    left = psutil.wait_procs(processes, timeout=20)[1]
    return [process for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_ctrl_c_leaves_a_certificate_and_no_process(tmp_path):
    process, others = started(tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=90)[0].splitlines()[-1] == "INTERRUPTED True"
    assert process.returncode == 0
    assert not alive(others)
    assert not list(tmp_path.glob("cmdpkit-*"))


@pytest.mark.slow
def test_a_run_whose_driver_is_killed_continues_anywhere(model, reference, tmp_path):
    process, others = started(tmp_path)
    agents = [other for other in others if "Agent" in other.name()]  # these notice it within a minute
    process.kill()
    process.communicate()
    assert not alive([other for other in others if other not in agents])
    for agent in alive(agents):
        agent.kill()
    continued = ck.solve(model, tol=TOL, checkpoint=tmp_path / "run", resume=True)
    same(continued, reference)
