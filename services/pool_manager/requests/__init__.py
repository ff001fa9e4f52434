"""Operator requests: validation, ordering, decisions and replies."""
