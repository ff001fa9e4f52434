"""The commands of `navarch`, one module per group."""
