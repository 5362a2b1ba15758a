"""`python -m quire`: the command line, also where the command is not on the path."""

from quire.cli import main

main()
