"""The `navarch` command: a client of the bus, and `serve`, which runs every service at once.

It has no core of its own: `render`, `describe` and `timeline` are pure, the rest asks and prints.
"""
