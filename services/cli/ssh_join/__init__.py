"""Installs agents on machines over SSH, joins them to a pool, and takes them out again."""
