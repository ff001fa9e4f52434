"""Faults and a policy become verdicts; heartbeats that stop become lost nodes."""
