"""Evidence about unhealthy nodes, and the cost of outages."""
