"""Runs: budgets, records, checkpoints, the driver, and results."""
