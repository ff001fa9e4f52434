"""The HTTP API: reads the fleet and requests changes over the bus, for callers with a token."""
