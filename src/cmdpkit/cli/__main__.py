"""`python -m cmdpkit.cli` is the command line."""

from cmdpkit.cli.main import main

main()
