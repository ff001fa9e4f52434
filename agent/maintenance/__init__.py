"""Work on the host that a service asks for: diagnostics, GPU resets, reboots."""
