"""Calls to providers: time limits, rate limits, credentials and error kinds."""
