"""Sends events to other systems, as CloudEvents."""
