"""Decides node health from faults, telemetry and policy. Pure."""
