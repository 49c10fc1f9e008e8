"""Compiled Acrobot: many pendulums at once, each with its own random stream.

Imported only when the batched environment is created; the compiled code is cached. Operations and their order are those
of Gymnasium's Acrobot-v1, in float64; the float32 observations are equal.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange, uint64

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
STEP = 0.2  # seconds per step
GRAVITY = 9.8
FASTEST_1, FASTEST_2 = 4.0 * math.pi, 9.0 * math.pi  # bounds of the angular velocities


@njit(cache=True, inline="always", error_model="numpy")
def _uniform(random, i):  # pragma: no cover - compiled
    """A number in [0, 1) from stream i: splitmix64 on a counter."""
    random[i] += GOLDEN
    z = random[i]
    z = (z ^ (z >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> uint64(27))) * uint64(0x94D049BB133111EB)
    z = z ^ (z >> uint64(31))
    return (z >> uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, inline="always", error_model="numpy")
def _accelerations(t1, t2, w1, w2, torque):  # pragma: no cover - compiled
    """The equations of motion in Sutton and Barto's book, for links of mass 1, length 1 and moment of inertia 1."""
    cos2, sin2 = math.cos(t2), math.sin(t2)
    d1 = 0.25 + (1.25 + cos2) + 1.0 + 1.0
    d2 = (0.25 + 0.5 * cos2) + 1.0
    phi2 = 0.5 * GRAVITY * math.cos(t1 + t2 - math.pi / 2.0)
    phi1 = -0.5 * (w2 * w2) * sin2 - w2 * w1 * sin2 + 1.5 * GRAVITY * math.cos(t1 - math.pi / 2.0) + phi2
    a2 = (torque + d2 / d1 * phi1 - 0.5 * (w1 * w1) * sin2 - phi2) / (1.25 - d2 * d2 / d1)
    return -(d2 * a2 + phi1) / d1, a2


@njit(cache=True, inline="always", error_model="numpy")
def _wrap(angle):  # pragma: no cover - compiled
    while angle > math.pi:
        angle = angle - 2.0 * math.pi
    while angle < -math.pi:
        angle = angle + 2.0 * math.pi
    return angle


@njit(cache=True, inline="always", error_model="numpy")
def _observe(t1, t2, w1, w2, observation):  # pragma: no cover - compiled
    """Write the observation; return the height of the tip above the fixed joint."""
    cos1 = math.cos(t1)
    observation[0], observation[1] = cos1, math.sin(t1)
    observation[2], observation[3] = math.cos(t2), math.sin(t2)
    observation[4], observation[5] = w1, w2
    return -cos1 - math.cos(t2 + t1)


@njit(cache=True, inline="always", error_model="numpy")
def _physics(t1, t2, w1, w2, torque):  # pragma: no cover - compiled
    """One Runge-Kutta step of fourth order; angles are wrapped to ±π, velocities bounded."""
    h = STEP / 2.0
    a1, a2 = _accelerations(t1, t2, w1, w2, torque)
    v1, v2 = w1 + h * a1, w2 + h * a2
    b1, b2 = _accelerations(t1 + h * w1, t2 + h * w2, v1, v2, torque)
    u1, u2 = w1 + h * b1, w2 + h * b2
    c1, c2 = _accelerations(t1 + h * v1, t2 + h * v2, u1, u2, torque)
    x1, x2 = w1 + STEP * c1, w2 + STEP * c2
    e1, e2 = _accelerations(t1 + STEP * u1, t2 + STEP * u2, x1, x2, torque)
    t1 = _wrap(t1 + STEP / 6.0 * (w1 + 2 * v1 + 2 * u1 + x1))
    t2 = _wrap(t2 + STEP / 6.0 * (w2 + 2 * v2 + 2 * u2 + x2))
    w1 = min(max(w1 + STEP / 6.0 * (a1 + 2 * b1 + 2 * c1 + e1), -FASTEST_1), FASTEST_1)
    w2 = min(max(w2 + STEP / 6.0 * (a2 + 2 * b2 + 2 * c2 + e2), -FASTEST_2), FASTEST_2)
    return t1, t2, w1, w2


@njit(cache=True, inline="always", error_model="numpy")
def _restart(state, random, i, observation):  # pragma: no cover - compiled
    """Reset: each of the four numbers is uniform in ±0.1 and rounded to float32, as in Gymnasium."""
    for j in range(4):
        state[i, j] = np.float32(-0.1 + 0.2 * _uniform(random, i))
    _observe(state[i, 0], state[i, 1], state[i, 2], state[i, 3], observation)


@njit(cache=True, inline="always", error_model="numpy")
def _one(state, random, age, window, action, i, observation, last, reward, costs, ended):  # pragma: no cover
    t1, t2, w1, w2 = state[i, 0], state[i, 1], state[i, 2], state[i, 3]
    pushing = action[i] != 0
    reward[i] = 1.0 if -math.cos(t1) - math.cos(t1 + t2) > -0.5 else 0.0
    costs[i, 0] = 1.0 if pushing and w1 < 0.0 else 0.0
    costs[i, 1] = 1.0 if pushing and w2 < 0.0 else 0.0
    t1, t2, w1, w2 = _physics(t1, t2, w1, w2, action[i] - 1.0)
    state[i, 0], state[i, 1], state[i, 2], state[i, 3] = t1, t2, w1, w2
    if _observe(t1, t2, w1, w2, observation[i]) > 1.0:  # the goal: reset, and continue
        _restart(state, random, i, observation[i])
    age[i] += 1
    ended[i] = age[i] >= window
    if ended[i]:
        last[i, :] = observation[i, :]
        age[i] = 0
        _restart(state, random, i, observation[i])


@njit(cache=True, error_model="numpy")
def _ready(age, action):  # pragma: no cover - compiled
    """Whether every environment has been reset and every action is 0, 1 or 2."""
    fit = True
    for i in range(age.size):
        fit &= age[i] >= 0 and 0 <= action[i] <= 2
    return fit


@njit(cache=True, error_model="numpy")
def step_serial(state, random, age, window, action, observation, last, reward, costs, ended):  # pragma: no cover
    """Step every environment; return the number of windows that ended, or −1 if the input is invalid."""
    if not _ready(age, action):
        return -1
    for i in range(state.shape[0]):
        _one(state, random, age, window, action, i, observation, last, reward, costs, ended)
    return ended.sum()


@njit(cache=True, error_model="numpy", parallel=True)
def step_parallel(state, random, age, window, action, observation, last, reward, costs, ended):  # pragma: no cover
    """`step_serial` with threads; the results are the same."""
    if not _ready(age, action):
        return -1
    for i in prange(state.shape[0]):
        _one(state, random, age, window, action, i, observation, last, reward, costs, ended)
    return ended.sum()


@njit(cache=True, error_model="numpy")
def restart(state, random, age, chosen, observation):  # pragma: no cover - compiled
    for i in range(state.shape[0]):
        if chosen[i]:
            age[i] = 0
            _restart(state, random, i, observation[i])
        else:
            _observe(state[i, 0], state[i, 1], state[i, 2], state[i, 3], observation[i])
