"""The message bus: the port that services use, and its two implementations."""
