"""Learners: each owns a policy, shows what is known of it, and improves it for given weights."""

from cmdpkit.learners.exact import ExactLearner

__all__ = ["ExactLearner"]
