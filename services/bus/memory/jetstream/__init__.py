"""What nats-server keeps and does, as values and functions: the state behind the in-memory bus."""
