"""Every message, subject, stream, bucket and setting of Navarch: pure data, no behaviour.

Nothing here does I/O or knows a clock; msgspec is the only import from outside. Whoever wants to
know what may travel on the bus reads this package and nothing else.
"""
