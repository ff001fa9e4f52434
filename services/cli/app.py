"""Builds `navarch` with every command: for the documentation, and for tests."""

from services.cli.command_table import command_line

app = command_line()
