"""Transitions (S, A, S) of every kind of chain. Rows sum to one up to rounding unless a function says otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np

Generator = np.random.Generator


def random(rng: Generator, S: int, A: int) -> Any:
    P = rng.dirichlet(np.full(S, rng.choice([0.1, 0.3, 1.0])), size=(S, A))
    return P / P.sum(axis=2, keepdims=True)


def rounded(rng: Generator, S: int, A: int) -> Any:
    """Multiples of 1/100, as people write them: sums of decimals round."""
    P = rng.multinomial(100, rng.dirichlet(np.ones(S), size=(S, A))) / 100.0
    return P if rng.random() < 0.5 else np.broadcast_to(P[:1, :1], P.shape).copy()  # or the same row everywhere


def deterministic(rng: Generator, S: int, A: int) -> Any:
    return np.eye(S)[rng.integers(0, S, size=(S, A))]


def identity(rng: Generator, S: int, A: int) -> Any:
    return np.eye(S)[np.arange(S)[:, None].repeat(A, axis=1)]


def absorbing(rng: Generator, S: int, A: int) -> Any:
    P = random(rng, S, A)
    for s in rng.choice(S, size=rng.integers(1, S + 1), replace=False):
        P[s] = np.eye(S)[s]
    return P


def reducible(rng: Generator, S: int, A: int) -> Any:
    """Classes that are never left, and transient states before them."""
    label = rng.integers(0, max(1, S // 2) + 1, size=S)  # class 0 may go anywhere
    P = random(rng, S, A) * ((label[:, None] == label) | (label[:, None] == 0))[:, None, :]
    P += np.eye(S)[:, None, :] * (P.sum(axis=2, keepdims=True) < 1e-3)
    return P / P.sum(axis=2, keepdims=True)


def periodic(rng: Generator, S: int, A: int) -> Any:
    period = int(rng.integers(1, S + 1))
    P = random(rng, S, A) * ((np.arange(S)[:, None] + 1 - np.arange(S)) % period == 0)[:, None, :]
    P += np.eye(S)[(np.arange(S) + 1) % S][:, None, :] * (P.sum(axis=2, keepdims=True) < 1e-3)
    return P / P.sum(axis=2, keepdims=True)


def bridges(rng: Generator, S: int, A: int) -> Any:
    """Two halves, left with probability 1e-3 to 1e-12."""
    bridge = 10.0 ** -rng.uniform(3.0, 12.0)
    same = (np.arange(S)[:, None] < S // 2) == (np.arange(S) < S // 2)
    P = random(rng, S, A) + 1e-3
    P *= np.where(same, 1.0, bridge)[:, None, :]
    return P / P.sum(axis=2, keepdims=True)


def _moves(S: int, targets: Any, slip: float) -> Any:
    """Action a of state s leads to targets[s, a], or stays where it is with probability `slip`."""
    return (1.0 - slip) * np.eye(S)[targets] + slip * np.eye(S)[:, None, :]


def line(rng: Generator, S: int, A: int) -> Any:
    steps = np.resize([1, -1, 0, 2, -2], A)
    return _moves(S, np.clip(np.arange(S)[:, None] + steps, 0, S - 1), float(rng.choice([0.0, 0.1, 0.25, 1e-7])))


def star(rng: Generator, S: int, A: int) -> Any:
    """A hub and its leaves, which lead back."""
    targets = np.zeros((S, A), dtype=int)
    targets[0] = rng.integers(0, S, size=A)
    return _moves(S, targets, float(rng.choice([0.0, 0.3, 0.999])))


def grid(rng: Generator, S: int, A: int) -> Any:
    width = max(1, round(S**0.5))
    row, column = np.divmod(np.arange(S), width)
    targets = np.empty((S, A), dtype=int)
    for a in range(A):
        up, right = [(0, 1), (1, 0), (0, -1), (-1, 0), (0, 0)][a % 5]
        to = (row + up) * width + column + right
        inside = (column + right >= 0) & (column + right < width) & (to >= 0) & (to < S)
        targets[:, a] = np.where(inside, to, np.arange(S))
    return _moves(S, targets, float(rng.choice([0.0, 0.1, 0.2])))


def walk(rng: Generator, S: int, A: int) -> Any:
    """A random walk whose drift is chosen."""
    P = np.zeros((S, A, S))
    s = np.arange(S)
    for a, up in enumerate(rng.uniform(0.0, 1.0, size=A)):
        np.add.at(P, (s, a, np.minimum(s + 1, S - 1)), up)
        np.add.at(P, (s, a, np.maximum(s - 1, 0)), 1.0 - up)
    return P


def cliff(rng: Generator, S: int, A: int) -> Any:
    """A walk upwards that falls back to the start, more or less likely by the action."""
    fall = 10.0 ** -rng.uniform(0.0, 8.0, size=A)
    up = np.eye(S)[np.minimum(np.arange(S) + 1, S - 1)]
    return (1.0 - fall)[None, :, None] * up[:, None, :] + fall[None, :, None] * np.eye(S)[0]


def faint(rng: Generator, S: int, A: int) -> Any:
    """Entries below 1e-9, 1e-15 and, rarely, 1e-300 beside ordinary ones."""
    P = random(rng, S, A)
    low = float(rng.choice([1e-10, 1e-13, 1e-16, 1e-20], p=[0.4, 0.3, 0.2, 0.1])) if rng.random() < 0.95 else 1e-300
    P = np.where(rng.random(P.shape) < 0.4, low * rng.random(P.shape), P)
    P += np.eye(S)[rng.integers(0, S, size=(S, A))] * (P.sum(axis=2, keepdims=True) < 0.1)
    return P / P.sum(axis=2, keepdims=True)


def off(rng: Generator, S: int, A: int) -> Any:
    """Sums that are off by rounding in single precision or by up to 1e-9."""
    P = random(rng, S, A)
    factor = 10.0 ** -rng.uniform(9.0, 16.0) * rng.choice([-1.0, 1.0, 0.0], size=(S, A, 1))
    return P * (1.0 + factor)


CHAINS = {
    chain.__name__: chain
    for chain in (
        random,
        rounded,
        deterministic,
        identity,
        absorbing,
        reducible,
        periodic,
        bridges,
        line,
        star,
        grid,
        walk,
        cliff,
        faint,
        off,
    )
}
