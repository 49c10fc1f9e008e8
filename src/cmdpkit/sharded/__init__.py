"""Models in blocks of states that no process holds as a whole: solved where the blocks are."""
