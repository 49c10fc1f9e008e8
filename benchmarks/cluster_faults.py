"""Kill workers and whole nodes of a cluster at random moments: the run must end with the same numbers, or say what
was lost.

    python benchmarks/cluster_faults.py --kills 50 --seed 0

Several nodes run on this machine (`ray.cluster_utils.Cluster`). A rollout run, a training run and a sweep go on while
`kill -9` hits a random worker or a random raylet, with everything on its node; lost nodes are replaced.
"""

import argparse
import contextlib
import random
import tempfile
import threading

import gymnasium

import cmdpkit as ck
from cmdpkit.cluster import session
from cmdpkit.envs import WithCosts
from shop import shop, slow_step

NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}


NOTICING = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1_000, "health_check_failure_threshold": 5}
"""A dead node is noticed within seconds, not half a minute."""


def cart():
    return WithCosts(gymnasium.make("CartPole-v1"), lambda step: step.action)


def learn(cluster):
    result = ck.solve(
        shop(slow_step), max_iterations=4, sampling=ck.Sampling(certificate_rollouts=500), cluster=cluster
    )
    return [result.objective, *result.policy.pi.ravel(), *result.certificate.intervals.ravel()]


def train(cluster):
    result = ck.train(cart, limits=[20], iterations=6, steps=100, hidden=[16], num_envs=6, cluster=cluster)
    return [*result.history["objective"], *result.history["constraint_values"].ravel()]


def sweep(cluster):
    with tempfile.TemporaryDirectory() as folder:
        settings = {"grid": {"eta_dual": [1e-3, 1e-2]}, "seeds": 2, "iterations": 6, "limits": [20]}
        found = ck.sweep(cart, ["pmd-pd"], out=folder, **settings, steps=100, hidden=[16], num_envs=4, cluster=cluster)
    return [x for run in found.runs for x in (run.objective, *run.constraint_values)]


JOBS = {"rollouts": learn, "training": train, "sweep": sweep}


def patiently(start, attempts=4):
    """Start a node; on a busy machine Ray gives up after half a minute, and leaves its processes."""
    import psutil

    before = set(psutil.Process().children(recursive=True))
    for _ in range(attempts - 1):
        try:
            return start()
        except Exception as error:  # of no type of its own
            if "timed out" not in str(error):
                raise
        for process in set(psutil.Process().children(recursive=True)) - before:
            with contextlib.suppress(psutil.Error):
                process.kill()
    return start()


class Nodes:
    """A head without processors, where the driver is, and nodes that can be killed."""

    def __init__(self, count):
        from ray.cluster_utils import Cluster

        quiet = {"include_dashboard": False, "node_ip_address": session.LOOPBACK}
        head = {**NODE, "num_cpus": 0, **quiet, "_system_config": NOTICING}
        self.cluster = Cluster()
        patiently(lambda: self.cluster.add_node(**head))
        self.nodes = [self._add() for _ in range(count)]
        self.kills = {"worker": 0, "node": 0}

    def _add(self):
        return patiently(lambda: self.cluster.add_node(**NODE, node_ip_address=session.LOOPBACK))

    def kill(self, rng, kind="ray::", workers=0.8):
        """Kill a worker process of some kind, or a raylet with all of its node, which is then replaced; what it was."""
        import psutil

        node = rng.choice(self.nodes)
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        found = []
        with contextlib.suppress(psutil.Error):  # gone already
            found = [p for p in raylet.children() if p.name().startswith(kind) and "Agent" not in p.name()]
        if not found:
            return None
        if rng.random() < workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                rng.choice(found).kill()
                self.kills["worker"] += 1
            return "worker"
        for process in [*raylet.children(recursive=True), raylet]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.kills["node"] += 1
        self.nodes.remove(node)
        with contextlib.suppress(Exception):
            self.cluster.remove_node(node, allow_graceful=False)
        self.nodes.append(self._add())
        return "node"


def main(kills, seed, nodes=2, pause=2.0, jobs=tuple(JOBS)):
    """Run the jobs in turn until so many processes were killed: (runs, kills, what was lost, wrong numbers)."""
    rng = random.Random(seed)
    expected = {name: JOBS[name](None) for name in jobs}
    print("expected numbers are known", flush=True)
    runs, lost, wrong = [], [], []
    with session.private_settings():
        cluster = Nodes(nodes)

        def work():
            while sum(cluster.kills.values()) < kills:
                name = jobs[len(runs) % len(jobs)]
                runs.append(name)
                try:
                    if JOBS[name]("auto") != expected[name]:
                        wrong.append(name)
                except (ck.cluster.WorkerLost, ck.TrainingFailed) as error:
                    lost.append(f"{name}: {str(error)[:200]}")
                print(f"{len(runs)} runs, {cluster.kills}, {len(lost)} lost, {len(wrong)} wrong", flush=True)

        try:
            with ck.cluster.connect(cluster.cluster.address):
                worker = threading.Thread(target=work, daemon=True)
                worker.start()
                while worker.is_alive():  # nodes can be started by the main thread only
                    cluster.kill(rng)
                    worker.join(rng.uniform(0.2, 2.0 * pause))
        finally:
            cluster.cluster.shutdown()
    return len(runs), cluster.kills, lost, wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=list(JOBS))
    arguments = parser.parse_args()
    runs, killed, lost, wrong = main(arguments.kills, arguments.seed, jobs=arguments.jobs)
    print(f"{runs} runs, killed {killed['worker']} workers and {killed['node']} nodes")
    print(f"{len(lost)} runs ended with an error that names what was lost, {len(wrong)} with other numbers")
    for line in lost:
        print("  " + line)
    raise SystemExit(bool(wrong))
