"""Scenarios: a fleet, what happens to it and what must then hold, written down in a YAML file."""
