"""Experiments: one file per figure; `run()` computes the data, `plot()` draws it, `section()` checks the claims."""
