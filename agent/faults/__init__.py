"""Turns observations into Fault events: parse, merge, deduplicate, rate-limit. Pure."""
