"""Autoscaling: a pool's metrics in, the size that it should have out."""
