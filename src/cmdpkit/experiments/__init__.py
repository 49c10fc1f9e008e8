"""Experiments: one file a figure; `run()` makes the data, `plot()` draws it."""
