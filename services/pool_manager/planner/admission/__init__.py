"""Decides which hardware may come into a pool, and what follows when some may not."""
