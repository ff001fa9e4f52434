"""Sources report queue lengths and utilization."""
