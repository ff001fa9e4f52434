"""Sagas: the table of definitions, and the engine: log, decisions, coordinator, participant."""
