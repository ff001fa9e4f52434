"""Decides whether nodes may be taken out of service: budget, breaker, waves, holds and windows."""
