"""The explorer: a local page on which limits and parameters are moved, and every setting is solved again."""

from cmdpkit.insight.explorer.serve import explore

__all__ = ["explore"]
