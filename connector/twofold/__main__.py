"""`python -m twofold`."""

from twofold.cli import main

main()
