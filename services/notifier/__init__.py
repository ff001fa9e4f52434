"""Cordons and drains in the workload system, and alerts operators."""
