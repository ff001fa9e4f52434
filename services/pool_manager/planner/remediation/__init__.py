"""Remediation of unhealthy nodes: what is done, which start now, what operators are asked."""
