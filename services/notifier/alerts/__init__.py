"""Alerts to operators: which events alert, deduplication and channels."""
