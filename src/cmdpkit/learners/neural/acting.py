"""Acting in rollouts, compiled: a dozen calls of NumPy between two steps take longer than the network itself.

Imported only for rollouts; the compiled code is cached. Rows do not depend on each other, and so an action does not
depend on how the environments are divided among processes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from cmdpkit.learners.neural.policy import CLIP, Floats, NeuralPolicy

CLIPPED = np.float32(CLIP)
ZERO = np.float32(0.0)


class Acting:
    """A policy as it acts in rollouts: drawn actions of a few observations at a time."""

    def __init__(self, policy: NeuralPolicy) -> None:
        self.actions = policy.actions
        parts = [part.ravel() for weight, bias in policy.layers for part in (weight.T, bias)]
        self._theta = np.concatenate(parts).astype(np.float32)
        self._sizes = np.array([policy.width, *(len(bias) for _, bias in policy.layers)])
        self._relu = policy.activation == "relu"
        none = np.zeros(0, dtype=np.float32)
        self._shift, self._scale = (none if part is None else part for part in (policy.shift, policy.scale))
        # argmax_a (y_a + Gumbel noise) is a draw from the softmax of y
        outputs = int(self._sizes[-1])
        self._std = np.ones(outputs, dtype=np.float32) if policy.log_std is None else np.exp(policy.log_std)

    def draw(self, observations: Floats, noise: Floats) -> Any:
        """Actions as the learner represents them, one per row."""
        drawn = np.empty(noise.shape, dtype=np.float32)
        _draw(observations, noise, self._shift, self._scale, self._theta, self._sizes, self._relu, self._std, drawn)
        return self.actions.best(drawn) if self.actions.discrete else drawn


@njit(cache=True, error_model="numpy")
def _draw(observations, noise, shift, scale, theta, sizes, relu, std, drawn):  # pragma: no cover - compiled
    """y + σ · noise for every row, where y is the output of the network as `NeuralPolicy.outputs` computes it."""
    widest = 0
    for size in sizes:
        widest = max(widest, size)
    x, z = np.empty(widest, dtype=np.float32), np.empty(widest, dtype=np.float32)
    for row in range(observations.shape[0]):
        for k in range(sizes[0]):
            x[k] = observations[row, k]
            if scale.size:
                x[k] = (x[k] - shift[k]) / scale[k]
                if x[k] > CLIPPED:
                    x[k] = CLIPPED
                elif x[k] < -CLIPPED:
                    x[k] = -CLIPPED
        begin = 0
        for layer in range(1, sizes.size):
            a, b = sizes[layer - 1], sizes[layer]
            for j in range(b):
                z[j] = theta[begin + a * b + j]
            for k in range(a):
                value, weights = x[k], theta[begin + k * b : begin + k * b + b]
                if value != ZERO:  # half of the outputs of a ReLU are 0
                    for j in range(b):
                        z[j] += value * weights[j]
            begin += a * b + b
            if layer < sizes.size - 1:
                for j in range(b):
                    if not relu:
                        x[j] = np.tanh(z[j])
                    elif z[j] < ZERO:
                        x[j] = ZERO
                    else:
                        x[j] = z[j]
        for j in range(sizes[-1]):
            drawn[row, j] = z[j] + std[j] * noise[row, j]
