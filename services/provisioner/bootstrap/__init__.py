"""Turns a new machine into a node: user data, credentials and setup commands."""
