"""Built-in models: each is a function that returns a feasible `CMDP` with a binding limit.

This holds for the defaults. With other parameters a limit may be infeasible, which `cmdpkit.solve` then proves.

    >>> import cmdpkit as ck
    >>> sorted(ck.problems.CATALOGUE)
    ['delivery', 'epidemic', 'garnet', 'grid', 'inventory', 'maintenance', 'paper', 'two_queues', 'wireless']
"""

from collections.abc import Callable

from cmdpkit.model import CMDP
from cmdpkit.problems.delivery import delivery
from cmdpkit.problems.epidemic import epidemic
from cmdpkit.problems.garnet import garnet
from cmdpkit.problems.grid import grid
from cmdpkit.problems.inventory import inventory
from cmdpkit.problems.maintenance import maintenance
from cmdpkit.problems.paper import paper
from cmdpkit.problems.queues import two_queues
from cmdpkit.problems.wireless import wireless

CATALOGUE: dict[str, Callable[..., CMDP]] = {
    "paper": paper,
    "garnet": garnet,
    "two_queues": two_queues,
    "wireless": wireless,
    "grid": grid,
    "maintenance": maintenance,
    "inventory": inventory,
    "delivery": delivery,
    "epidemic": epidemic,
}
"""Name and function of each model; the first line of the function's docstring describes it."""

__all__ = [
    "CATALOGUE",
    "delivery",
    "epidemic",
    "garnet",
    "grid",
    "inventory",
    "maintenance",
    "paper",
    "two_queues",
    "wireless",
]
