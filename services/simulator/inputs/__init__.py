"""Drives a simulation: fuzz campaigns, scenario files and stress specifications."""
