"""Decides what a pool needs next: size, remediation, safety limits, admission. Pure."""
