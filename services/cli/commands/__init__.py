"""Contains the commands of `navarch`, one module per group."""
