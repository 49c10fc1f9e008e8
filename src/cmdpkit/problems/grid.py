"""A robot on a slippery grid with unsafe cells."""

from __future__ import annotations

import numpy as np

from cmdpkit.model import CMDP, AtMost
from cmdpkit.problems._build import check_between, check_positive, check_whole, sparse_transitions

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Up, right, down, left: the actions 0 to 3, as (row, column)."""


def grid(
    rows: int = 6,
    columns: int = 10,
    slip: float = 0.2,
    visit_limit: float = 0.5,
    gamma: float = 0.95,
    layout: str | None = None,
) -> CMDP:
    """A robot on a slippery grid: reach the goal quickly, with few visits to unsafe cells.

    The action is the direction of the next move. The reward of 1 for reaching the goal, discounted by the time that it
    takes, is maximised; the expected discounted number of steps in unsafe cells is limited. The short path leads
    through unsafe cells, the long one around them. This is the standard example of safe reinforcement learning: a
    penalty for unsafe cells has to be tuned, while a limit states directly what is acceptable.

    A move succeeds with probability 1 − slip and otherwise goes to either side. If a wall or the border is in the way,
    the robot stays. The goal is absorbing, without further reward. The states are the cells that are not walls, in
    reading order.

    Args:
        rows, columns: the size of the standard map: start and goal in the bottom corners, an unsafe field between
            them that leaves the upper third of the rows free.
        slip: the probability of a sideways move, half of it to each side.
        visit_limit: the largest discounted number of visits to unsafe cells; a visit t steps after the start counts
            gamma**t.
        gamma: the discount factor per move. For distant goals it should be close to 1.
        layout: a map to use instead, one line per row: `S` start, `G` goal (one or more), `!` unsafe, `#` wall,
            `.` free. `rows` and `columns` are then not used.

    Example:
        >>> import cmdpkit as ck
        >>> ck.problems.grid()
        CMDP(states=60, actions=4, constraints=['unsafe visits'], gamma=0.95)
        >>> ck.problems.grid(layout='''
        ...     ....#.
        ...     S.!!.G
        ... ''')
        CMDP(states=11, actions=4, constraints=['unsafe visits'], gamma=0.95)
    """
    cells = cells_of(rows, columns, layout)
    slip = check_between(slip, "slip", 0.0, 1.0)

    index = np.full((cells.shape[0] + 2, cells.shape[1] + 2), -1)  # with a border
    free = np.argwhere(cells != "#") + 1
    index[tuple(free.T)] = np.arange(len(free))
    towards = np.stack([index[tuple((free + move).T)] for move in MOVES], axis=1)  # (S, A)
    towards = np.where(towards < 0, np.arange(len(free))[:, None], towards)

    kind = cells[tuple((free - 1).T)]
    goal = kind == "G"
    towards[goal] = np.flatnonzero(goal)[:, None]
    # The sideways moves are the previous and the next direction in cyclic order.
    successors = np.stack([towards, np.roll(towards, 1, axis=1), np.roll(towards, -1, axis=1)], axis=-1)
    probabilities = np.array([1.0 - slip, slip / 2.0, slip / 2.0])
    reaches = np.where(goal[:, None], 0.0, goal[successors] @ probabilities)
    return CMDP(
        sparse_transitions(successors, probabilities),
        reward=reaches,
        constraints=[
            AtMost(
                np.repeat(kind == "!", len(MOVES)).reshape(towards.shape),
                check_positive(visit_limit, "visit_limit"),
                name="unsafe visits",
            )
        ],
        gamma=gamma,
        initial=int(np.flatnonzero(kind == "S")[0]),
    )


def cells_of(rows: int, columns: int, layout: str | None) -> np.ndarray[tuple[int, ...], np.dtype[np.str_]]:
    """The map, one character per cell."""
    if layout is None:
        layout = _standard(check_whole(rows, "rows", 3), check_whole(columns, "columns", 4))
    return _read(layout)


def _standard(rows: int, columns: int) -> str:
    cells = np.full((rows, columns), ".")
    cells[rows // 3 :, columns // 4 : columns - columns // 4] = "!"
    cells[-1, 0], cells[-1, -1] = "S", "G"
    return "\n".join("".join(row) for row in cells)


def _read(layout: str) -> np.ndarray[tuple[int, ...], np.dtype[np.str_]]:
    lines = layout.split()
    if not lines or len({len(line) for line in lines}) > 1:
        raise ValueError(f"the rows of the layout must be equally long, got lengths {[len(line) for line in lines]}")
    text = "".join(lines)
    unknown = sorted(set(text) - set("SG!#."))
    if unknown:
        raise ValueError(f"the layout holds {unknown}; use S start, G goal, ! unsafe, # wall, . free")
    if text.count("S") != 1 or "G" not in text:
        raise ValueError(f"the layout needs one S and at least one G, got {text.count('S')} and {text.count('G')}")
    return np.array([list(line) for line in lines])
