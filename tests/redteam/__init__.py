"""Attacks that must fail, each with its expected outcome."""
