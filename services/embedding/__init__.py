"""Runs a fleet inside another program, for tests and for programs with plugins of their own."""
