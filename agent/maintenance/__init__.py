"""What the agent does to its host on command: diagnostics, GPU resets, reboots."""
