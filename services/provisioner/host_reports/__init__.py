"""Providers report events that they schedule for their hosts, and failing status checks."""
