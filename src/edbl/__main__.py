"""Run the command line as ``python -m edbl``."""

from edbl.cli import main

main()
