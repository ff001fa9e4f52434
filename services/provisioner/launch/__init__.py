"""Launches instances: at most one per request, across any crash."""
