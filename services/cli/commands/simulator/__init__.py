"""Implements `navarch simulator`: fleets in virtual time and in real time."""
