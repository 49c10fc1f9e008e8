"""A delivery robot with an energy budget: a problem with a goal."""

from __future__ import annotations

import numpy as np

from cmdpkit.model import CMDP, AtMost
from cmdpkit.problems._build import check_between, check_positive, check_whole, sparse_transitions
from cmdpkit.problems.grid import MOVES


def delivery(
    rows: int = 5,
    columns: int = 8,
    slip: float = 0.1,
    patience: float = 30.0,
    slow: float = 0.4,
    energy: float = 3.0,
    budget: float = 25.0,
) -> CMDP:
    """A delivery robot: arrive before the customer gives up, with an energy budget.

    The action is a direction and a speed. Fast moves always leave the cell and use more energy; slow moves use one unit
    and succeed now and then. The probability of delivery is maximised, the expected energy until the end is limited.
    There is no discount (gamma = 1): the process ends with the delivery, or when the customer gives up, which may
    happen in every step. So every policy ends, also one that goes round in circles.

    Actions 0 to 3 are slow moves up, right, down and left, 4 to 7 the fast ones. The robot starts in the lower left
    corner, the customer is in the upper right one. The states are the cells in reading order; the last state is the
    end.

    Args:
        rows, columns: the size of the floor.
        slip: the probability of a sideways move, half of it to each side.
        patience: after how many steps the customer gives up, on average.
        slow: the probability that a slow move leaves the cell.
        energy: what a fast move uses; a slow one uses 1.
        budget: the largest expected energy.

    Example:
        >>> import cmdpkit as ck
        >>> cmdp = ck.problems.delivery()
        >>> cmdp
        CMDP(states=41, actions=8, constraints=['energy'], gamma=1)
        >>> round(ck.solve(cmdp).objective, 4)
        0.5767
    """
    rows, columns = check_whole(rows, "rows", 2), check_whole(columns, "columns", 2)
    slip, slow = check_between(slip, "slip", 0.0, 1.0), check_between(slow, "slow", 0.0, 1.0)
    leaves = 1.0 / check_between(patience, "patience", 1.0, np.inf)
    cells = rows * columns
    end, goal = cells, columns - 1
    place = np.stack(np.divmod(np.arange(cells), columns), axis=1)
    ahead = place[:, None, :] + np.array(MOVES)
    inside = ((ahead >= 0) & (ahead < [rows, columns])).all(axis=-1)
    towards = np.where(inside, ahead[..., 0] * columns + ahead[..., 1], np.arange(cells)[:, None])
    # Ahead, to either side, where it is, and the end
    moves = [towards, np.roll(towards, 1, axis=1), np.roll(towards, -1, axis=1)]
    stays = np.broadcast_to(np.arange(cells)[:, None], towards.shape)
    successors = np.stack([*moves, stays, np.full(towards.shape, end)], axis=-1)
    successors = np.tile(successors, (1, 2, 1))
    successors = np.concatenate([successors, np.full((1, 8, 5), end)])
    successors[goal] = end
    leave = np.repeat([slow, 1.0], len(MOVES))[:, None] * [1.0 - slip, slip / 2.0, slip / 2.0]
    going = np.column_stack([leave, 1.0 - leave.sum(axis=1)]) * (1.0 - leaves)
    probabilities = np.column_stack([going, 1.0 - going.sum(axis=1)])
    used = np.tile(np.repeat([1.0, check_positive(energy, "energy")], len(MOVES)), (cells + 1, 1))
    used[[goal, end]] = 0.0
    delivered = np.zeros((cells + 1, 8))
    delivered[goal] = 1.0
    return CMDP(
        sparse_transitions(successors, np.broadcast_to(probabilities, successors.shape)),
        reward=delivered,
        constraints=[AtMost(used, check_positive(budget, "budget"), name="energy")],
        gamma=1,
        initial=(rows - 1) * columns,
    )
