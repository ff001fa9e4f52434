"""A Ray cluster: its state, and orders."""
