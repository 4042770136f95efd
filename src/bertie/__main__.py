"""`python -m bertie` is the command line."""

from bertie.cli.main import entry

entry()
