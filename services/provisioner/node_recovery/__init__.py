"""Saga steps that recover or test a node in place: GPU reset, reboot, diagnostics."""
