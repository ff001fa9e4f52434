"""Figures of this machine, measured on real processes: `make bench`."""
