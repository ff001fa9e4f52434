"""Decides what holds back something automatic: each gate is one function, in one table."""
