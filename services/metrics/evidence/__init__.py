"""Evidence about unhealthy nodes, and what their time out of service cost."""
