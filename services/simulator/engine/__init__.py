"""The simulated fleet: virtual time, bus, cloud, machines, workload system and invariants."""
