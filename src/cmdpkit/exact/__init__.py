"""Exact solvers: the MDP oracle, columns priced by it, and the occupancy LP."""
