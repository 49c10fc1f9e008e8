"""From a model to a decision: what a limit costs (frontier), and why limits cannot be met (diagnose)."""
