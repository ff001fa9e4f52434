"""Reads a fleet and requests changes over the bus: for the command line and the gateway."""
