"""The whole fleet in one process and in virtual time; composes the services, so it has no core."""
