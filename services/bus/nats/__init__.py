"""The bus on a real nats-server, through nats-py."""
