"""Constrained Gymnasium environments. Importing this registers `cmdpkit/ConstrainedAcrobot-v0`.

>>> import gymnasium, cmdpkit.envs
>>> env = gymnasium.make("cmdpkit/ConstrainedAcrobot-v0")  # one
>>> envs = gymnasium.make_vec("cmdpkit/ConstrainedAcrobot-v0", num_envs=64)  # many, compiled
"""

import gymnasium

from cmdpkit.envs.acrobot import WINDOW, ConstrainedAcrobot, ConstrainedAcrobots
from cmdpkit.envs.batch import as_batch
from cmdpkit.envs.costs import FloatCosts, SixTuple, Step, WithCosts, read_costs

__all__ = [
    "ConstrainedAcrobot",
    "ConstrainedAcrobots",
    "FloatCosts",
    "SixTuple",
    "Step",
    "WithCosts",
    "as_batch",
    "read_costs",
]

gymnasium.register(
    "cmdpkit/ConstrainedAcrobot-v0",
    entry_point="cmdpkit.envs.acrobot:ConstrainedAcrobot",
    vector_entry_point="cmdpkit.envs.acrobot:ConstrainedAcrobots",
    max_episode_steps=WINDOW,
)
