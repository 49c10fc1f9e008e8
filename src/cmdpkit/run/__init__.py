"""Runs: budgets, records, checkpoints, the driver, and what they return."""
