"""Fuzz campaigns: random faults drawn from a seed, and the search for violated invariants."""
