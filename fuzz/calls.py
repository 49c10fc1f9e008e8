"""What is asked of the package about one model, and the judgement of every answer."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import cmdpkit as ck
from cmdpkit.evaluation.bounds import macqueen_bound
from fuzz.judge import Finding, Judge

METHODS = ("auto", "columns", "pmd-pd", "lp", "certify", "slater", "macqueen")
SOLVERS = METHODS[:4]
TOL = 1e-6

Answer = tuple[str, Callable[[Judge], list[Finding]]]
"""A label, and how the judge looks at what was answered."""


def ask(cmdp: ck.CMDP, method: str, rng: np.random.Generator, iterations: int | None = None) -> Iterator[Answer]:
    """Call the package; only this part counts as its time. `iterations` shorten pmd-pd."""
    if method in SOLVERS:
        result = ck.solve(cmdp, method, tol=TOL, max_iterations=iterations if method == "pmd-pd" else None)
        yield method, lambda judge: judge.result(result, TOL, method)
    elif method == "certify":
        yield from _certificates(cmdp, rng)
    elif method == "slater":
        margin = ck.slater_margin(cmdp)
        yield method, lambda judge: judge.slater(margin)
    elif method == "macqueen":
        yield from _bounds(cmdp, rng)
    else:
        raise ValueError(f"unknown method {method!r}; choose from {', '.join(METHODS)}")


def _certificates(cmdp: ck.CMDP, rng: np.random.Generator) -> Iterator[Answer]:
    """Policies of every kind, with the best multipliers and with some that are far off."""
    S, A, m = cmdp.states, cmdp.actions, cmdp.num_constraints
    mask = cmdp.pairs.mask
    played = np.where(mask, rng.dirichlet(np.full(A, 0.3), size=S) + 1e-9, 0.0)
    mixed = ck.TabularPolicy(played / played.sum(axis=1, keepdims=True))
    pure = ck.TabularPolicy.deterministic(np.where(mask, rng.random((S, A)), -1.0).argmax(axis=1), A)
    uniform = ck.TabularPolicy(mask / mask.sum(axis=1, keepdims=True))
    mixture = ck.MixturePolicy([mixed, pure, uniform], rng.dirichlet(np.ones(3)))
    far = rng.exponential(size=m) * 10.0 ** rng.uniform(-6.0, 9.0, size=m) * (rng.random(m) < 0.8)
    cases = [
        ("uniform", uniform, None),
        ("random", mixed, far),
        ("deterministic", pure, np.zeros(m)),
        ("mixture", mixture, far / 1e3),
    ]
    for name, policy, multipliers in cases:
        certificate = ck.certify(cmdp, policy, multipliers)
        yield f"certify {name}", _looking_at(certificate, policy, name)


def _looking_at(certificate: Any, policy: Any, name: str) -> Callable[[Judge], list[Finding]]:
    return lambda judge: judge.certificate(certificate, judge.policy(policy), name)


def _bounds(cmdp: ck.CMDP, rng: np.random.Generator) -> Iterator[Answer]:
    """Lower bounds from guesses of the values that are near, far off and very far off."""
    m, model = cmdp.num_rows, cmdp if cmdp.lowering is None else cmdp.lowering.model
    for objective in (1.0, 0.0) if m else (1.0,):
        weights = np.append(objective, rng.exponential(size=m) * 10.0 ** rng.uniform(-3.0, 3.0, size=m))
        size = float(weights @ model.cost_sizes) / model.step_weight
        for off in (0.0, 1e-9, 1.0, 1e3, 1e6):
            guess = size * off * rng.normal(size=model.states) + size * rng.choice([0.0, 1.0, -1.0])
            bound = macqueen_bound(model, weights, guess)
            yield f"macqueen {off:g}", _bounded(bound, weights)


def _bounded(bound: float, weights: Any) -> Callable[[Judge], list[Finding]]:
    return lambda judge: judge.lower_bound(bound, weights)


def examine(
    cmdp: ck.CMDP, method: str, key: tuple[int, int], iterations: int | None = None
) -> tuple[list[Answer], list[Finding]]:
    """All answers of one method, and what went wrong on the way to them; after a warning it is asked once more."""
    answers, findings = _collect(cmdp, method, key, iterations, "error")
    if any(finding.kind == "warning" for finding in findings):
        answers, more = _collect(cmdp, method, key, iterations, "ignore")
        findings += more
    return answers, findings


def _collect(
    cmdp: ck.CMDP, method: str, key: tuple[int, int], iterations: int | None, warning_action: Any
) -> tuple[list[Answer], list[Finding]]:
    answers: list[Answer] = []
    with warnings.catch_warnings():
        warnings.simplefilter(warning_action)
        try:
            for answer in ask(cmdp, method, np.random.default_rng([*key, METHODS.index(method)]), iterations):
                answers.append(answer)
        except Warning as warning:
            return answers, [Finding("warning", _where(warning))]
        except Exception as error:
            return answers, [Finding("exception", _where(error))]
    return answers, []


def judged(judge: Judge, answers: list[Answer]) -> list[Finding]:
    """The judge's findings; a failure of the judge itself is one of them."""
    findings = []
    for label, look in answers:
        try:
            found = look(judge)
        except Exception as error:
            found = [Finding("unjudged", _where(error))]
        findings += [Finding(kind, f"[{label}] {detail}") for kind, detail in found]
    return findings


def _where(error: BaseException) -> str:
    """The exception in one line, with the innermost place in this project."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "cmdpkit" in f.filename or "fuzz" in f.filename]
    place = f" ({frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}{place}"
