"""What the cloud announces of this host: that it takes it back, or will work on it.

Each cloud tells so through its metadata service, which only the instance itself can ask. Notices
are published as faults of the kinds `preemption` and `maintenance`; nothing is acknowledged.
"""
