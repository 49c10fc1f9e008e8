"""Simulators: models whose transition probabilities are not known."""

from cmdpkit.simulators.known_model import ModelSimulator, as_simulator
from cmdpkit.simulators.simulator import JUDGING, LEARNING, STARTS, Returns, Simulator, stream

__all__ = ["JUDGING", "LEARNING", "STARTS", "ModelSimulator", "Returns", "Simulator", "as_simulator", "stream"]
