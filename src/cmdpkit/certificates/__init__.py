"""Certificates: what is proved about a policy, by arithmetic, by rollouts and by episodes."""
