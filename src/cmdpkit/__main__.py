"""`python -m cmdpkit` is the command line."""

from cmdpkit.cli import main

main()
