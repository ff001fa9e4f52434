"""Explains what a pool and its nodes wait for, from the gates that hold them."""
