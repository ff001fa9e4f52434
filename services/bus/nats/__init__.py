"""Implements the bus on a real nats-server, through nats-py."""
