"""Models what nats-server keeps and does, as values and functions, for the in-memory bus."""
