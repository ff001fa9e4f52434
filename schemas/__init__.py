"""Every message, subject, stream, bucket and setting of Navarch: pure data, no behaviour.

Nothing here does I/O or reads a clock; msgspec is the only third-party import.
"""
