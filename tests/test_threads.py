"""Threads: BLAS has one while a model is solved by dense algebra, and as many as before afterwards."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.linalg  # noqa: F401  (it brings a BLAS of its own)
from threadpoolctl import threadpool_info, threadpool_limits

import cmdpkit as ck
from cmdpkit.evaluation.threads import OneBlasThread


def blas_threads():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def dense(states):
    rng = np.random.default_rng(states)
    chances = rng.dirichlet(np.ones(states), size=(states, 3))
    wear = ck.AtMost(rng.random((states, 3)), 4.0)
    return ck.CMDP(chances, reward=rng.random((states, 3)), constraints=[wear], gamma=0.9, action_axis=1)


@pytest.fixture(autouse=True)
def two_threads():
    with threadpool_limits(2, user_api="blas"):
        yield


@pytest.mark.parametrize(
    ("make", "threads"),
    [
        (lambda: dense(100), 1),
        (lambda: ck.problems.two_queues(capacity=9), 1),  # sparse, and solved by pivots
        (lambda: dense(10), 2),  # too small for threads anyway
        (lambda: ck.problems.garnet(300, actions=3, successors=4), 2),  # sparse algebra
    ],
)
def test_dense_algebra_has_one_thread(make, threads):
    with OneBlasThread(make()):
        assert set(blas_threads()) == {threads}
    assert set(blas_threads()) == {2}


@pytest.mark.parametrize("method", ["auto", "pmd-pd"])
def test_solve_sets_back_what_was_there(method):
    seen = []
    ck.solve(dense(100), method, callback=lambda _: seen.append(set(blas_threads())))
    assert seen[0] == {1}
    assert set(blas_threads()) == {2}

    def fail(_):
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        ck.solve(dense(100), method, callback=fail)
    assert set(blas_threads()) == {2}


def test_the_last_of_several_at_once_sets_it_back():
    model = dense(100)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: ck.solve(model).objective, range(8)))
    assert len(set(found)) == 1
    assert set(blas_threads()) == {2}
