"""Kubernetes: its objects, what follows from them, and the calls of its API."""
