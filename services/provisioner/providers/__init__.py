"""One module per provider."""
