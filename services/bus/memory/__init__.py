"""The bus in memory: a JetStream server in one process, for simulations and tests."""
