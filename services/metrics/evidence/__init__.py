"""Collects evidence about unhealthy nodes, and sums the cost of outages."""
