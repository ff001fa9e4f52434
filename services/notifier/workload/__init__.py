"""Connections to workload systems: cordon, drain and uncordon."""
