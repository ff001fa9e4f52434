"""Whether nodes may be taken out of service now: budget, breaker, waves, holds and windows."""
