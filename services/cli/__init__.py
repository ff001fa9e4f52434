"""The `navarch` command: a client of the bus, and `serve`, which runs all services."""
