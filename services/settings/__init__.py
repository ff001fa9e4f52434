"""Reads and validates YAML configuration, and loads the plugins it names."""
