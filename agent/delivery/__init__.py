"""Sends events to the bus: in order, at least once, across broker outages and agent restarts."""
