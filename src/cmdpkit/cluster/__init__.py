"""Beyond one process: everything that imports Ray, and only where a caller asked for a cluster."""

from cmdpkit.cluster.session import check_cluster, connect

__all__ = ["check_cluster", "connect"]
