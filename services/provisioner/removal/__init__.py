"""Removing instances, and finding those that nobody remembers."""
