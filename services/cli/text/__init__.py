"""Formats the output of the command line. Pure."""
