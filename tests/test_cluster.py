"""A cluster changes nothing but who does the work: the same numbers, errors with names, and nothing left behind."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import psutil
import pytest

import cmdpkit as ck
from cmdpkit.cluster import check_cluster, crew, in_order, pool, session, using
from cmdpkit.envs import WithCosts, scattered
from shop import shop, step

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def workers():
    with ck.cluster.connect("local", workers=3, object_store=200 * 2**20):
        yield


def same_runs(one, other):
    assert one.objective == other.objective
    assert one.samples == other.samples
    np.testing.assert_array_equal(one.policy.log_pi, other.policy.log_pi)
    np.testing.assert_array_equal(one.multipliers, other.multipliers)
    assert one.certificate.to_dict() == other.certificate.to_dict()
    assert one.average_certificate.to_dict() == other.average_certificate.to_dict()


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster", "error", "match"),
    [
        (3, TypeError, "not int"),
        (True, TypeError, "not bool"),
        ("", ValueError, "an address such as"),
        ("somewhere", ValueError, "an address such as"),
        ("host:", ValueError, "an address such as"),
        ("host:99999", ValueError, "an address such as"),
        ("ray://host:10001", ValueError, "Ray Client"),
    ],
)
def test_what_cluster_may_be(cluster, error, match):
    for call in (
        check_cluster,
        lambda c: ck.solve(shop(), cluster=c),
        lambda c: ck.frontier(PAPER, "utility", cluster=c),
    ):
        with pytest.raises(error, match=match):
            call(cluster)


PAPER = ck.problems.paper()


def test_without_ray_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'cmdpkit\[cluster\]'"):
        ck.solve(shop(), cluster="local")


def test_auto_needs_a_cluster(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(session, "_connected", lambda: False)
    for named in (None, "", "auto", "local"):  # what Ray itself understands
        if named is not None:
            monkeypatch.setenv("RAY_ADDRESS", named)
        with pytest.raises(ConnectionError, match="found no running Ray cluster"), ck.cluster.connect("auto"):
            pass
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ConnectionError, match=r"no Ray cluster at 127\.0\.0\.1:1"), ck.cluster.connect("auto"):
        pass


def test_limits_are_for_private_clusters():
    with pytest.raises(ValueError, match="have their own"), ck.cluster.connect("auto", workers=2):
        pass
    with pytest.raises(ValueError, match="workers must be at least 1"), ck.cluster.connect("local", workers=0):
        pass


def test_exact_methods_do_not_take_a_cluster():
    with pytest.raises(ValueError, match="learning from samples"):
        ck.solve(PAPER, cluster="local")


def test_without_a_cluster_nothing_of_ray_is_imported():
    program = (
        "import sys, numpy as np, cmdpkit as ck\n"
        "cmdp = ck.problems.paper()\n"
        "ck.solve(cmdp, sampling=ck.Sampling(), max_iterations=2)\n"
        "ck.certify_by_simulation(cmdp, np.full((20, 10), 0.1))\n"
        "ck.compare(cmdp, max_iterations=3); ck.frontier(cmdp, 'utility', tol=0.1)\n"
        "ck.train('cmdpkit/ConstrainedAcrobot-v0', limits=[50, 50], iterations=1, hidden=[4], steps=5)\n"
        "assert not {'ray', 'psutil'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# -- safe by default ---------------------------------------------------------------------------------------------------


def test_a_private_cluster_is_private(workers):
    import ray

    node = ray._private.worker._global_node
    folder = Path(node.get_temp_dir_path()).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    processes = session._processes(str(folder))
    assert len(processes) >= 5
    ports = [c for process in [psutil.Process(), *processes] for c in listening(process)]
    assert len(ports) >= 4
    assert {c.laddr.ip.removeprefix("::ffff:") for c in ports} == {"127.0.0.1"}
    assert not node.webui_url
    assert ray.cluster_resources()["object_store_memory"] == 200 * 2**20
    assert ray.cluster_resources()["CPU"] == 3
    # who does not know the token is not answered
    stranger = (
        "from ray._raylet import GcsClient; from ray.exceptions import AuthenticationError\n"
        "try:\n"
        f"    GcsClient(address={ray.get_runtime_context().gcs_address!r}).internal_kv_keys(b'', None)\n"
        "except AuthenticationError:\n"
        "    print('refused')\n"
    )
    free = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", stranger]
    answer = subprocess.run(command, env=free | {"RAY_AUTH_MODE": "disabled"}, capture_output=True, text=True)
    assert answer.stdout == "refused\n", answer.stderr


@pytest.mark.parametrize("token", [None, "0" * 64])
def test_without_its_token_a_cluster_cannot_be_joined(workers, tmp_path, token):
    """The error says so within seconds; Ray alone waits for minutes."""
    import ray

    program = f"import cmdpkit as ck\nwith ck.cluster.connect({ray.get_runtime_context().gcs_address!r}): pass"
    settings = {"HOME": str(tmp_path)} | ({} if token is None else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token})
    free = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | settings
    done = subprocess.run([sys.executable, "-c", program], env=free, capture_output=True, text=True, timeout=60)
    assert "asks for a token that this program does not have" in done.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())  # no token is written


def listening(process):
    with contextlib.suppress(psutil.Error):
        return [c for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    return []


def test_an_open_connection_is_used_and_left_open(workers):
    import ray

    for cluster in ("local", "auto", ray.get_runtime_context().gcs_address):
        with ck.cluster.connect(cluster):
            assert ray.is_initialized()
    assert ray.is_initialized()
    with pytest.raises(ValueError, match="is connected to the cluster at"), ck.cluster.connect("10.0.0.1:6379"):
        pass


# -- blocks of work ----------------------------------------------------------------------------------------------------


def square(kept, shared, block):
    return kept * block**2 + shared


def fail_at_seven(kept, shared, block):
    if block == 7:
        raise KeyError("seven")
    return block


def die(kept, shared, block):
    if block == 3:
        os._exit(1)
    return block


def die_once(kept, shared, block):
    """Kill this worker in the middle of some blocks, the first time they are done."""
    mark = Path(shared) / str(block)
    if block % 5 == 0 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return np.random.default_rng(np.random.SeedSequence(1, spawn_key=(block,))).random()


def test_answers_are_in_order(workers):
    with using("local"):
        assert list(in_order(square, range(20), 2, 1)) == [2 * n * n + 1 for n in range(20)]
        assert list(in_order(square, [], 2, 1)) == []


@pytest.mark.parametrize("cluster", [None, "local"])
def test_an_error_names_its_block(cluster, workers):
    with using(cluster), pytest.raises(KeyError, match="seven") as caught:
        list(in_order(fail_at_seven, range(10), name=lambda block: f"block number {block}"))
    assert caught.value.__notes__[0].startswith("in block number 7")


def test_a_worker_that_dies_is_replaced(workers, tmp_path):
    expected = [np.random.default_rng(np.random.SeedSequence(1, spawn_key=(n,))).random() for n in range(20)]
    with using("local"):
        assert list(in_order(die_once, range(20), shared=str(tmp_path))) == expected
    assert len(list(tmp_path.iterdir())) == 4


def test_a_block_that_kills_every_worker_is_named(workers, monkeypatch):
    monkeypatch.setattr(pool, "RETRIES", 1)
    with using("local"), pytest.raises(ck.cluster.WorkerLost, match="block 3 was lost with its worker"):
        list(in_order(die, range(5), name=lambda block: f"block {block}"))


def test_what_cannot_be_sent_is_named(workers):
    with using("local"), pytest.raises(TypeError, match="this generator cannot be sent"):
        list(in_order(square, range(2), (n for n in range(3)), 1))


def test_work_ends_when_the_caller_stops_it(workers):
    asked = []

    def stop():
        asked.append(1)
        if len(asked) > 2:
            raise TimeoutError

    with using("local"), pytest.raises(TimeoutError):
        list(in_order(sleep, range(10), stop=stop))


def sleep(kept, shared, block):
    time.sleep(1.0)


# -- the same numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [pytest.param("truncated", marks=pytest.mark.slow), "geometric", "pooled"])
def test_learning_from_a_users_simulator(estimator, workers):
    sampling = ck.Sampling(rollouts=40, estimator=estimator, certificate_rollouts=2_000)
    here, there = (ck.solve(shop(), max_iterations=3, sampling=sampling, seed=5, cluster=c) for c in (None, "local"))
    same_runs(here, there)


def test_learning_from_a_models_simulator(workers, monkeypatch):
    monkeypatch.setattr("cmdpkit.simulators.known_model.ModelSimulator.block", 20_000)
    here, there = (ck.solve(PAPER, sampling=ck.Sampling(), max_iterations=3, cluster=c) for c in (None, "local"))
    same_runs(here, there)


@pytest.mark.parametrize("model", [PAPER, shop()], ids=["compiled", "user's own"])
def test_certificates_by_simulation(model, workers, monkeypatch):
    monkeypatch.setattr("cmdpkit.simulators.known_model.TASK", 100_000)
    uniform = ck.TabularPolicy.uniform(model.states, model.actions)
    for policy in (uniform, ck.MixturePolicy([uniform] * 3)):
        here, there = (ck.certify_by_simulation(model, policy, rollouts=4_000, cluster=c) for c in (None, "local"))
        assert here.to_dict() == there.to_dict()


def cart():
    return WithCosts(gymnasium.make("CartPole-v1"), lambda step: step.action)


def pendulum():
    return WithCosts(gymnasium.make("Pendulum-v1"), lambda step: abs(float(step.action[0])))


ACROBOT = "cmdpkit/ConstrainedAcrobot-v0"


@pytest.mark.parametrize(("env", "count"), [(cart, 1), (cart, 3), (pendulum, 2), (ACROBOT, 3)])
def test_training(env, count, workers, monkeypatch):
    monkeypatch.setattr(scattered, "processors", lambda: count)
    limits = [50, 50] if isinstance(env, str) else [20]
    settings = {"limits": limits, "iterations": 2, "steps": 60, "num_envs": 7, "hidden": [16, 16], "normalise": True}
    here, there = (ck.train(env, cluster=c, **settings) for c in (None, "local"))
    for column in ("objective", "constraint_values", "divergence"):
        np.testing.assert_array_equal(here.history[column], there.history[column])
    for one, other in zip(here.policy.layers, there.policy.layers, strict=True):
        np.testing.assert_array_equal(one[0], other[0])


def test_certificates_on_episodes(workers):
    policy = ck.train(cart, limits=[20], iterations=1, steps=20, hidden=[8]).policy
    settings = {"limits": [20], "episodes": 30, "steps": 40, "num_envs": 7}
    here, there = (ck.certify_on_episodes(cart, policy, cluster=c, **settings) for c in (None, "local"))
    assert here.to_dict() == there.to_dict()


def garnet(seed):
    return ck.problems.garnet(states=8, actions=3, constraints=1, seed=seed)


def test_comparisons(workers):
    here, there = (
        ck.compare({"paper": PAPER, "random": garnet}, ["pmd-pd", "crpo"], seeds=2, max_iterations=20, cluster=c)
        for c in (None, "local")
    )
    assert here.notes == there.notes
    assert len(here.runs) == len(there.runs) == 6
    for one, other in zip(here.runs, there.runs, strict=True):
        assert (one.model, one.method, one.seed, one.status) == (other.model, other.method, other.seed, other.status)
        np.testing.assert_array_equal(one.objective, other.objective)
        assert one.final == other.final


def test_frontiers(workers):
    here, there = (ck.frontier(PAPER, "utility", tol=1e-2, cluster=c) for c in (None, "local"))
    np.testing.assert_array_equal(here.limits, there.limits)
    np.testing.assert_array_equal(here.objectives, there.objectives)
    assert there.model is not None


def test_experiments(workers, tmp_path):
    from cmdpkit.experiments.reproduce import reproduce

    data = {}
    for cluster in (None, "local"):
        folder = tmp_path / str(cluster)
        reproduce(["fig1"], folder, 1, True, lambda items, _: items, cluster=cluster)
        data[cluster] = {file.name: file.read_bytes() for file in folder.glob("*.csv")}
    assert data[None]
    assert data[None] == data["local"]


# -- users' errors -----------------------------------------------------------------------------------------------------


def test_a_failing_simulator_is_blamed(workers):
    def broken(states, actions, rng):
        if (states == 3).any():
            raise KeyError("no such shelf")
        return step(states, actions, rng)

    messages = []
    for cluster in (None, "local"):
        with pytest.raises(ValueError, match="in state 3 with action") as caught:
            ck.solve(shop(broken), max_iterations=2, cluster=cluster)
        messages.append(str(caught.value))
        assert any("seed 0" in note for note in caught.value.__notes__)
    assert messages[0] == messages[1]


class Fails(gymnasium.Wrapper):
    """Fails in its fifth step: always, or until a file is there."""

    def __init__(self, env, mark=None):
        super().__init__(env)
        self.mark, self.count = mark, 0

    def step(self, action):
        self.count += 1
        if self.count == 5 and not (self.mark and self.mark.exists()):
            if self.mark:
                self.mark.touch()
            raise OSError("on fire")
        return super().step(action)


def test_an_environment_that_fails_once_is_made_again(workers, tmp_path):
    def sometimes():
        return WithCosts(Fails(gymnasium.make("CartPole-v1"), tmp_path / "failed"), lambda step: step.action)

    settings = {"limits": [20], "iterations": 1, "steps": 20, "hidden": [8]}
    there = ck.train(sometimes, cluster="local", **settings)
    assert (tmp_path / "failed").exists()
    np.testing.assert_array_equal(there.history["objective"], ck.train(cart, **settings).history["objective"])


def test_an_environment_that_fails_is_blamed(workers):
    def burning():
        return WithCosts(Fails(gymnasium.make("CartPole-v1")), lambda step: step.action)

    with pytest.raises(
        ck.TrainingFailed, match=r"step 4 of a rollout: OSError: on fire .*environments \d to \d of burn"
    ):
        ck.train(burning, limits=[20], iterations=1, steps=20, hidden=[8], cluster="local")


def test_vector_environments_cannot_be_divided(workers):
    batch = ck.envs.as_batch(cart, 3)
    with pytest.raises(ValueError, match="cannot be divided"):
        ck.train(batch, limits=[20], num_envs=3, cluster="local")


def test_environments_that_persist_are_not_divided(workers):
    with pytest.raises(ValueError, match="leave out persist, or cluster"):
        ck.train(cart, limits=[20], persist=True, cluster="local")


def part(what, number):
    return {"number": number, "pid": os.getpid()}


def look(held, shared, piece):
    return held["number"], shared, piece, held["pid"]


def test_members_of_a_crew_that_die_start_again(workers):
    members = crew.Crew(part, None, [0, 1], ["first", "second"])
    before = members.call(look, "a", [5, 6])
    assert [answer[:3] for answer in before] == [(0, "a", 5), (1, "a", 6)]
    os.kill(before[1][3], signal.SIGKILL)
    after = members.call(look, "b", [7, 8])
    assert [answer[:3] for answer in after] == [(0, "b", 7), (1, "b", 8)]
    assert after[1][3] != before[1][3]


# -- what is left behind -----------------------------------------------------------------------------------------------

PROGRAM = """
import sys, time, numpy as np, cmdpkit as ck
sys.path.insert(0, {benchmarks!r})
from shop import shop, step

def slow(states, actions, rng):
    time.sleep(0.002)
    return step(states, actions, rng)

def tell(news):
    print("iteration", news.iteration, flush=True)

result = ck.solve(shop(slow), max_iterations=int(sys.argv[1]), checkpoint=sys.argv[2], callback=tell, cluster="local")
print(result.status.name, result.iterations, flush=True)
"""


def test_a_sweep_is_the_same_on_a_cluster(workers, tmp_path):
    given = {
        "grid": {"eta_dual": [0.1, 1.0]},
        "seeds": 2,
        "iterations": 4,
        "step": 1.0,
        "sampling": ck.Sampling(rollouts=2),
    }
    here = ck.sweep(PAPER, ["pmd-pd"], out=tmp_path / "here", **given)
    there = ck.sweep(PAPER, ["pmd-pd"], out=tmp_path / "there", cluster="local", **given)
    assert [run.objective for run in there.runs] == [run.objective for run in here.runs]
    assert [run.samples for run in there.runs] == [run.samples for run in here.runs]


@pytest.fixture
def program(tmp_path):
    """A run with a cluster of its own, and the place of its files."""
    place = tmp_path / "t"
    place.mkdir()
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.format(benchmarks=str(BENCHMARKS)))

    def start(iterations):
        command = [sys.executable, str(file), str(iterations), str(tmp_path / "run.npz")]
        free = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=free | {"TMPDIR": str(place)})

    return start


def until_iteration(process, number):
    for line in process.stdout:
        if line == f"iteration {number}\n":
            return psutil.Process(process.pid).children(recursive=True)
    raise AssertionError("the program ended early")


def all_gone(processes):
    _, alive = psutil.wait_procs(processes, timeout=20)
    return not alive or all(not process.is_running() or process.status() == psutil.STATUS_ZOMBIE for process in alive)


@pytest.mark.slow
def test_ctrl_c_leaves_a_result_and_nothing_else(program, tmp_path):
    process = program(1_000)
    others = until_iteration(process, 2)
    assert len(others) >= 5
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=60)[0]
    assert "INTERRUPTED" in rest
    assert process.returncode == 0
    assert all_gone(others)
    assert not list((tmp_path / "t").glob("cmdpkit-*"))


@pytest.mark.slow
def test_a_run_whose_driver_is_killed_continues(program, tmp_path):
    process = program(1_000)
    others = until_iteration(process, 2)
    deadline = time.monotonic() + 60
    while not (tmp_path / "run.npz").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    names = {other.pid: other.name() for other in others}
    process.kill()
    process.communicate()
    agents = [other for other in others if "Agent" in names[other.pid]]  # these notice it within a minute
    assert all_gone([other for other in others if other not in agents])
    for agent in agents:
        with contextlib.suppress(psutil.Error):
            agent.kill()
    from cmdpkit.files import load_arrays

    done = int(load_arrays(tmp_path / "run.npz", "cmdpkit checkpoint")["steps"])
    assert done >= 1
    continued = ck.solve(shop(), max_iterations=done + 2, checkpoint=tmp_path / "run.npz", resume=True)
    same_runs(continued, ck.solve(shop(), max_iterations=done + 2))
