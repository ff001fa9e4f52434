"""Bugs drawn from the places where services write, and whether campaigns find them."""
