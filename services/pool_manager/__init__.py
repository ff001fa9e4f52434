"""Compares each pool with what is wanted and starts sagas; runs their coordinator."""
