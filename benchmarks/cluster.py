"""Throughput of rollouts and of training, in one process and on 1 and 2 workers, in the same run.

    python benchmarks/cluster.py [--quick]

Two cores: what is measured is overhead, not speed-up on a real cluster.
"""

import argparse
import time

import gymnasium

import cmdpkit as ck
from cmdpkit.envs import WithCosts
from shop import shop


def pendulum():
    return WithCosts(gymnasium.make("Pendulum-v1"), lambda step: abs(float(step.action[0])))


def rollouts(cluster, size):
    uniform = ck.TabularPolicy.uniform(10, 5)
    simulator = shop(block=200_000, gamma=0.95)
    return ck.certify_by_simulation(simulator, uniform, rollouts=20_000 * size, cluster=cluster).samples


def compiled(cluster, size):
    uniform = ck.TabularPolicy.uniform(20, 10)
    return ck.certify_by_simulation(ck.problems.paper(), uniform, rollouts=4_000_000 * size, cluster=cluster).samples


def training(cluster, size):
    settings = {"limits": [100], "num_envs": 16, "steps": 200, "iterations": 8 * size, "hidden": [32, 32]}
    return ck.train(pendulum, cluster=cluster, **settings).samples


JOBS = {"rollouts of a Python simulator": rollouts, "rollouts of a known model": compiled, "training": training}


def rate(job, cluster, size):
    """Steps per second; the first call, which starts processes and compiles, does not count."""
    job(cluster, size)
    started = time.perf_counter()
    return job(cluster, size) / (time.perf_counter() - started)


def main(quick):
    size = 1 if quick else 4
    rates = {name: [rate(job, None, size)] for name, job in JOBS.items()}
    for workers in (1, 2):
        started = time.perf_counter()
        with ck.cluster.connect("local", workers=workers):
            print(f"a cluster of {workers} started in {time.perf_counter() - started:.1f} s")
            for name, job in JOBS.items():
                rates[name].append(rate(job, "local", size))
    print("| steps per second | one process | 1 worker | 2 workers |")
    print("|---|---|---|---|")
    for name, (here, one, two) in rates.items():
        print(f"| {name} | {here:,.0f} | {one:,.0f} ({one / here:.2f}) | {two:,.0f} ({two / here:.2f}) |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the work")
    main(parser.parse_args().quick)
