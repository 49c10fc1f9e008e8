"""The command line: parses, calls, shows."""

from cmdpkit.cli.main import cli, main

__all__ = ["cli", "main"]
