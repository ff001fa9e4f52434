"""Navarch's services: one folder is one process, `python -m services.<name>`."""
