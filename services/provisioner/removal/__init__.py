"""Removes instances, and finds those that crashes left behind."""
