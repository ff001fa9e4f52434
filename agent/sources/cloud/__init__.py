"""Provider notices about this host: preemption and maintenance.

Each cloud announces them in its metadata service, which only the instance can read. Notices
are published as faults of the kinds `preemption` and `maintenance`; nothing is acknowledged.
"""
