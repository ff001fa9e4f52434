"""Machines that exist join pools with tokens, and leave them."""
