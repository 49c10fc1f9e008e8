"""Beyond one process: everything that imports Ray, and only where a caller asked for a cluster."""

from cmdpkit.cluster.pool import WorkerLost, distributed, elsewhere, in_order, using
from cmdpkit.cluster.session import check_cluster, connect

__all__ = ["WorkerLost", "check_cluster", "connect", "distributed", "elsewhere", "in_order", "using"]
