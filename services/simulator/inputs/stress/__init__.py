"""Stress runs: a generated fleet of thousands that fails as a file says, and how it was borne."""
