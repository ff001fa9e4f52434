"""Sources of queue lengths and utilization."""
