"""A neural policy that acts with NumPy alone; for small batches it is several times faster than PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cmdpkit.files import PathLike, load_arrays, save_arrays

Floats = NDArray[np.float32]

CLIP = 10.0
"""Normalised observations are clipped to ± this, which limits the effect of outliers."""


class Actions:
    """Converts outputs of a network to actions of the environment.

    Discrete actions are drawn from the softmax of the outputs, several at once (`low` and `high` are arrays then) from
    that of their parts. For continuous ones the outputs are means and log σ of normal distributions, in units in which
    the bounds of each action are ±1; actions are clipped to these bounds.
    """

    def __init__(self, discrete: bool, low: Any, high: Any) -> None:
        self.discrete = discrete
        self.low, self.high = np.asarray(low), np.asarray(high)  # in the type of the environment's actions
        if not discrete:
            bounded = np.isfinite(self.low) & np.isfinite(self.high)
            with np.errstate(invalid="ignore"):
                low, high = self.low.astype(np.float64), self.high.astype(np.float64)
                self._centre = np.where(bounded, 0.5 * (low + high), 0.0)
                self._half = np.where(bounded, 0.5 * (high - low), 1.0)

    @classmethod
    def of(cls, space: Any) -> Actions:
        """The actions of a Gymnasium space; raises an error if it is not supported."""
        kind = type(space).__name__
        if kind == "Discrete":
            return cls(True, int(space.start), int(space.start + space.n) - 1)
        if kind == "Box" and space.dtype.kind == "f" and len(space.shape) == 1:
            return cls(False, space.low, space.high)
        if kind == "MultiDiscrete" and space.nvec.ndim == 1:
            return cls(True, space.start, space.start + space.nvec - 1)
        raise TypeError(
            f"actions must be Discrete, MultiDiscrete or a Box, of one dimension, not {space}; flatten them with a "
            "wrapper"
        )

    @property
    def outputs(self) -> int:
        """Number of outputs that depend on the state: one per action, or one mean per dimension."""
        return sum(self.choices) if self.discrete else int(self.low.size)

    @property
    def choices(self) -> list[int]:
        """How many actions there are to choose from, for each of several discrete ones."""
        return [int(n) for n in np.atleast_1d(self.high - self.low + 1)]

    def bounds(self) -> NDArray[np.float64]:
        """(4, dimensions): low, high, centre and half the width of continuous actions; (4, 0) of discrete ones."""
        if self.discrete:
            return np.zeros((4, 0))
        return np.array([self.low, self.high, self._centre, self._half], dtype=np.float64)

    def empty(self, shape: Sequence[int]) -> Any:
        """Room for so many actions as the learner represents them."""
        if self.discrete:
            return np.empty((*shape, *self.low.shape), np.int64)
        return np.empty((*shape, self.outputs), np.float32)

    def noise(self, rng: np.random.Generator, shape: Sequence[int]) -> Floats:
        """The random numbers of `draw`, generated in advance for a whole rollout."""
        size = (*shape, self.outputs)
        # argmax_a (y_a + Gumbel noise) is a draw from the softmax of y
        return (rng.gumbel(size=size) if self.discrete else rng.standard_normal(size)).astype(np.float32)

    def draw(self, y: Floats, noise: Floats) -> Any:
        """Actions as the learner represents them: an index from 0, or a number in units of the bounds."""
        if self.discrete:
            return self.best(y + noise)
        mean, log_std = np.split(y, 2, axis=-1)
        return mean + np.exp(log_std) * noise

    def best(self, y: Floats) -> Any:
        """The most likely action."""
        if not self.discrete:
            return y[..., : self.outputs]
        if not self.low.ndim:
            return y.argmax(axis=-1)
        parts = np.split(y, np.cumsum(self.choices)[:-1], axis=-1)
        return np.stack([part.argmax(axis=-1) for part in parts], axis=-1)

    def for_env(self, actions: Any) -> Any:
        """The same actions as the environment takes them."""
        if self.discrete:
            return actions + self.low if self.low.any() else actions
        scaled = self._centre + self._half * actions
        return np.maximum(np.minimum(scaled, self.high), self.low).astype(self.low.dtype)


class NeuralPolicy:
    """A policy that is a perceptron.

    Args:
        layers: weights (outputs, inputs) and biases of each layer.
        actions: the meaning of the outputs.
        log_std: log σ of each continuous action.
        shift, scale: if given, observations are normalised to (x − shift) / scale.
        activation: of the hidden layers, "relu" or "tanh".

    Example:
        >>> policy = NeuralPolicy([(np.eye(2), np.zeros(2))], Actions(True, 0, 1))
        >>> policy
        NeuralPolicy(observations of 2 numbers, hidden layers [], 2 discrete actions)
        >>> int(policy.act(np.array([0.0, 5.0])))
        1
    """

    def __init__(
        self,
        layers: Sequence[tuple[Any, Any]],
        actions: Actions,
        log_std: Any = None,
        shift: Any = None,
        scale: Any = None,
        activation: str = "relu",
    ) -> None:
        if activation not in ("relu", "tanh"):
            raise ValueError(f"activation must be 'relu' or 'tanh', not {activation!r}")
        self.activation = activation
        self.layers = [(np.asarray(w, dtype=np.float32), np.asarray(b, dtype=np.float32)) for w, b in layers]
        self.actions = actions
        self.log_std = None if log_std is None else np.asarray(log_std, dtype=np.float32)
        self.shift = None if shift is None else np.asarray(shift, dtype=np.float32)
        self.scale = None if scale is None else np.asarray(scale, dtype=np.float32)
        self._transposed = [(np.ascontiguousarray(w.T), b) for w, b in self.layers]

    @property
    def width(self) -> int:
        """Size of an observation."""
        return int(self.layers[0][0].shape[1])

    def inputs(self, observations: Any) -> Floats:
        """Observations as the network takes them: (..., width), float32, normalised."""
        x = np.asarray(observations, dtype=np.float32)
        if self.shift is None or self.scale is None:
            return x
        x = x - self.shift
        x /= self.scale
        np.minimum(x, CLIP, out=x)  # np.clip takes three times as long for a few rows
        return np.maximum(x, -CLIP, out=x)

    def outputs(self, x: Floats) -> Floats:
        """The network on `inputs`; rows are states."""
        y = self._last_layer(x)
        return y if self.log_std is None else np.concatenate([y, np.broadcast_to(self.log_std, y.shape)], axis=-1)

    def _last_layer(self, x: Floats) -> Floats:
        for weight, bias in self._transposed[:-1]:
            x = np.dot(x, weight)  # for a few rows faster than the operator
            x += bias
            np.tanh(x, out=x) if self.activation == "tanh" else np.maximum(x, 0.0, out=x)
        weight, bias = self._transposed[-1]
        x = np.dot(x, weight)
        x += bias
        return x

    def act(self, observations: Any, rng: np.random.Generator | None = None, deterministic: bool | None = None) -> Any:
        """Actions for one observation or a batch of them: drawn with `rng`, or the most likely ones without.

        `deterministic` says it explicitly: True takes the most likely actions, False needs `rng`.
        """
        if deterministic is False and rng is None:
            raise ValueError("deterministic=False draws actions: pass rng, a NumPy generator")
        x, width = np.asarray(observations, dtype=np.float32), self.width
        single = x.size == width and x.shape != (1, width)
        if not single and (x.ndim < 2 or x.size != len(x) * width):
            raise ValueError(f"the policy takes observations of {width} numbers, or a batch of them, not {x.shape}")
        if not np.isfinite(x).all():
            raise ValueError(f"an observation has a number that is not finite: {x[~np.isfinite(x)][0]}")
        y = self.outputs(self.inputs(x.reshape(-1, width)))
        chosen = (
            self.actions.best(y)
            if deterministic or rng is None
            else self.actions.draw(y, self.actions.noise(rng, y.shape[:1]))
        )
        answer = self.actions.for_env(chosen)
        return answer[0] if single else answer

    def __repr__(self) -> str:
        hidden = [len(bias) for _, bias in self.layers[:-1]]
        count = " x ".join(map(str, self.actions.choices)) if self.actions.discrete else str(self.actions.outputs)
        kind = f"{count} {'discrete' if self.actions.discrete else 'continuous'} action"
        plural = "" if count == "1" else "s"
        return f"NeuralPolicy(observations of {self.width} numbers, hidden layers {hidden}, {kind}{plural})"

    def arrays(self) -> dict[str, Any]:
        """The policy as a flat dict of arrays, for files."""
        parts: dict[str, Any] = {f"weight_{i}": w for i, (w, _) in enumerate(self.layers)}
        parts |= {f"bias_{i}": b for i, (_, b) in enumerate(self.layers)}
        parts |= {"discrete": np.array(self.actions.discrete), "low": self.actions.low, "high": self.actions.high}
        optional = {"log_std": self.log_std, "shift": self.shift, "scale": self.scale}
        if self.activation != "relu":
            optional["activation"] = np.array(self.activation)
        return parts | {name: value for name, value in optional.items() if value is not None}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> NeuralPolicy:
        """The policy that `arrays` describes."""
        depth = sum(name.startswith("weight_") for name in arrays)
        try:
            layers = [(arrays[f"weight_{i}"], arrays[f"bias_{i}"]) for i in range(depth)]
            actions = Actions(bool(arrays["discrete"]), arrays["low"], arrays["high"])
        except KeyError as error:
            raise ValueError(f"the policy is incomplete: the entry {error} is missing") from error
        optional = {name: arrays[name] for name in ("log_std", "shift", "scale") if name in arrays}
        return cls(layers, actions, **optional, activation=str(arrays.get("activation", "relu")))

    def save(self, path: PathLike) -> None:
        """Write the policy to an `.npz` file, atomically and without pickle."""
        save_arrays(path, "cmdpkit neural policy", self.arrays())

    @classmethod
    def load(cls, path: PathLike) -> NeuralPolicy:
        """Read a policy written by `save`. Neither PyTorch nor Gymnasium is needed to act."""
        arrays = load_arrays(path, "cmdpkit neural policy")
        try:
            policy = cls.from_arrays(arrays)
            strange = sorted(set(arrays) - set(policy.arrays()) - {"kind"})
            if strange:  # what has lost its name would be left out
                raise ValueError(f"it has no entry {strange[0]!r}")
            policy.outputs(policy.inputs(np.zeros((1, policy.layers[0][0].shape[1]))))
        except (ValueError, IndexError) as error:
            raise ValueError(f"{path} does not hold a valid policy: {error}") from error
        return policy
