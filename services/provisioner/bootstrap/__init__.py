"""How a new machine becomes a node: what it is handed, and what is run on it."""
