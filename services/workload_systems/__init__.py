"""Implements clients of Slurm, Kubernetes and Ray, for drains and for queues."""
