"""Each provider has one module."""
