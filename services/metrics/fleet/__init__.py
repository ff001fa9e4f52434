"""Exports the fleet's state as Prometheus metrics, and the lag of every consumer."""
