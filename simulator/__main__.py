"""`python -m simulator`: the command line."""

from simulator.cli import main

main()
