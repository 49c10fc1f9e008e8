"""Learners: each owns a policy, tells its constraint values, and improves it for given weights."""

from cmdpkit.learners.exact import ExactLearner

__all__ = ["ExactLearner"]
