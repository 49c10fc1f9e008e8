"""Acting in rollouts, compiled: a dozen calls of NumPy between two steps take longer than the network itself.

Imported only for rollouts; the compiled code is cached. Rows do not depend on each other, and so an action does not
depend on how the environments are divided among processes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from cmdpkit.learners.neural.policy import CLIP, Floats, NeuralPolicy
from cmdpkit.learners.neural.tanh import tanh

ZERO = np.float32(0.0)


class Acting:
    """A policy as it acts in a rollout: drawn actions of a few observations at a time.

    Args:
        policy: the policy.
        seen: (T, n, width), the observations; those of a step need not be known before it.
        noise: (T, n, outputs), the random numbers of `Actions.draw`.
        actions: (T, n, ...), written: the actions as the learner sees them.
    """

    def __init__(self, policy: NeuralPolicy, seen: Floats, noise: Floats, actions: Any) -> None:
        self.actions, self._for_learner = policy.actions, actions
        sizes = np.array([policy.width, *(len(bias) for _, bias in policy.layers)])
        width, outputs = policy.width, int(sizes[-1])
        normalised = policy.shift is not None and policy.scale is not None
        scaling = (policy.shift, policy.scale, [CLIP]) if normalised else (np.zeros(width), np.ones(width), [np.inf])
        # argmax_a (y_a + Gumbel noise) is a draw from the softmax of y
        std = np.ones(outputs) if policy.log_std is None else np.exp(policy.log_std)
        layers = [part.ravel() for weight, bias in policy.layers for part in (weight.T, bias)]
        numbers = np.concatenate([*scaling, std, *layers]).astype(np.float32)
        bounds, discrete = self.actions.bounds(), self.actions.discrete
        self._drawn = np.empty(noise.shape, dtype=np.float32) if discrete else actions
        kind = np.float32 if discrete else self.actions.low.dtype
        self._chosen = np.empty((*noise.shape[:2], bounds.shape[1]), dtype=kind)
        given = (seen, np.ascontiguousarray(noise), numbers, sizes, policy.activation == "relu", bounds)
        self._arrays = (*given, self._drawn, self._chosen)

    def __call__(self, t: int) -> Any:
        """Draw the actions of step t; returned as the environment takes them."""
        _draw(t, *self._arrays)
        if not self.actions.discrete:
            return self._chosen[t]
        self._for_learner[t] = self.actions.best(self._drawn[t])
        return self.actions.for_env(self._for_learner[t])


@njit(cache=True, error_model="numpy")
def _add_product(x, weights, z):  # pragma: no cover - compiled
    """z ← z + x W, with the rows of W one after the other: four at a time, added in their order."""
    a, b = x.size, z.size
    for k in range(0, a - 3, 4):
        w, x_0, x_1, x_2, x_3 = weights[k * b : (k + 4) * b], x[k], x[k + 1], x[k + 2], x[k + 3]
        for j in range(b):
            z[j] = (((z[j] + x_0 * w[j]) + x_1 * w[b + j]) + x_2 * w[2 * b + j]) + x_3 * w[3 * b + j]
    for k in range(a - a % 4, a):
        for j in range(b):
            z[j] += x[k] * weights[k * b + j]


@njit(cache=True, error_model="numpy")
def _draw(t, observations, noise, numbers, sizes, relu, bounds, drawn, chosen):  # pragma: no cover - compiled
    """y + σ · noise for every row, where y is the output of the network as `NeuralPolicy.outputs` computes it.

    Args:
        t: the step; the first index of observations, noise and what is written.
        observations: (T, n, width).
        noise: (T, n, outputs).
        numbers: shift and scale of the observations, where they are clipped, σ, and the layers.
        sizes: of the layers.
        relu: whether that is the activation; otherwise tanh.
        bounds: (4, outputs): low, high, centre and half the width of the actions; (4, 0) where they are discrete.
        drawn: (T, n, outputs), written.
        chosen: (T, n, outputs), written: the same for the environment.
    """
    widest = 0
    for size in sizes:
        widest = max(widest, size)
    x, z = np.empty(widest, dtype=np.float32), np.empty(widest, dtype=np.float32)
    width, outputs = sizes[0], sizes[-1]
    clip, std = numbers[2 * width], numbers[2 * width + 1 : 2 * width + 1 + outputs]
    for row in range(observations.shape[1]):
        for k in range(width):
            x[k] = (observations[t, row, k] - numbers[k]) / numbers[width + k]
            if x[k] > clip:
                x[k] = clip
            elif x[k] < -clip:
                x[k] = -clip
        begin = 2 * width + 1 + outputs
        for layer in range(1, sizes.size):
            a, b = sizes[layer - 1], sizes[layer]
            for j in range(b):
                z[j] = numbers[begin + a * b + j]
            _add_product(x[:a], numbers[begin : begin + a * b], z[:b])
            begin += a * b + b
            if layer < sizes.size - 1:
                if relu:
                    for j in range(b):
                        x[j] = ZERO if z[j] < ZERO else z[j]
                else:
                    tanh(z[:b], x)
        for j in range(outputs):
            drawn[t, row, j] = z[j] + std[j] * noise[t, row, j]
        for j in range(bounds.shape[1]):
            action = bounds[2, j] + bounds[3, j] * drawn[t, row, j]
            if action > bounds[1, j]:
                action = bounds[1, j]
            elif action < bounds[0, j]:
                action = bounds[0, j]
            chosen[t, row, j] = action
