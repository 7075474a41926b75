"""`python -m edgespec`."""

from edgespec.cli.main import main

main()
