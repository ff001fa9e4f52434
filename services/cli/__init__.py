"""The `navarch` command."""
