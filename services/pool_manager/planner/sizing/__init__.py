"""Decides how many nodes a pool and its reserve have: which are begun, which leave."""
