"""`deterministic=True` with long-run averages, against brute force over all deterministic policies."""

import itertools

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.evaluation.average import long_run_distribution
from cmdpkit.run.status import Status
from long_run import communicating, multichain, unichain

METHODS = {"unichain": unichain, "communicating": communicating, "multichain": multichain}


def brute_force(cmdp, tol=1e-9):
    """The best objective of all deterministic policies within the limits; None if there is none."""
    pairs = cmdp.pairs
    P = cmdp.transitions.toarray() if hasattr(cmdp.transitions, "toarray") else np.asarray(cmdp.transitions)
    best = np.inf
    for choice in itertools.product(*(range(a, b) for a, b in itertools.pairwise(pairs.first))):
        rows = np.array(choice)
        v = cmdp.costs[:, rows] @ long_run_distribution(P[rows], cmdp.initial)
        if (v[1:] <= cmdp.offsets + tol * np.maximum(1.0, np.abs(cmdp.limits))).all():
            best = min(best, v[0])
    return None if np.isinf(best) else cmdp.sense * best


@pytest.mark.parametrize("kind", METHODS)
def test_the_best_of_all_deterministic_policies(kind):
    """What is claimed is right for all models, and it is claimed for nearly all."""
    claimed, asked = 0, 0
    for seed in range(40):
        cmdp = METHODS[kind](seed)
        if not cmdp.num_constraints or np.prod(np.diff(cmdp.pairs.first).astype(float)) > 300.0:
            continue
        best, result = brute_force(cmdp), ck.solve(cmdp, deterministic=True)
        asked += 1
        if result.status is Status.INFEASIBLE:
            assert best is None, seed
        elif result.status is Status.OPTIMAL:
            assert best is not None, seed
            assert set(np.unique(result.policy.pi)) <= {0.0, 1.0}
            assert result.objective == pytest.approx(best, abs=3e-6 * max(1.0, abs(best))), seed
            assert ck.long_run_averages(cmdp, result.policy)[0] == pytest.approx(result.objective, abs=1e-9)
            assert result.certificate.feasible(1e-6)
        else:
            assert kind != "unichain", (seed, result.status)
            assert result.status is Status.SEVERAL_CLASSES, (seed, result.status)
        if result.deterministic_bound is not None and best is not None:
            assert cmdp.sense * result.deterministic_bound <= cmdp.sense * best + 3e-6, seed
        claimed += result.status in (Status.OPTIMAL, Status.INFEASIBLE)
    assert asked >= 12
    assert claimed >= (1.0 if kind == "unichain" else 0.8) * asked, (claimed, asked)


def test_a_machine_that_must_not_randomise():
    """Broken at most 8 % of the time: the best policy randomises, and the best that does not earns less."""
    cmdp = ck.problems.maintenance(levels=5, average=True)
    free, fixed = ck.solve(cmdp), ck.solve(cmdp, deterministic=True)
    assert fixed.status is Status.OPTIMAL
    assert fixed.objective == pytest.approx(brute_force(cmdp), abs=1e-6)
    assert fixed.objective < free.objective - 1e-3
    assert len(free.policy.randomised_states()) == 1
    assert fixed.constraint_values[0] <= 0.08
