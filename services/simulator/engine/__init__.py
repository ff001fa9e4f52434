"""Simulates a fleet: virtual time, bus, cloud, machines, workload system and invariants."""
