"""Calls to providers: bounded, paced, with credentials, and with errors that are told."""
