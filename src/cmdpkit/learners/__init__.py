"""Learners: each owns a policy, evaluates it, and improves it for given weights."""

from cmdpkit.learners.exact import ExactLearner

__all__ = ["ExactLearner"]
