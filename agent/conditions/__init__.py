"""Conditions of this host: declared in one table, seen by readers, judged by an engine."""
