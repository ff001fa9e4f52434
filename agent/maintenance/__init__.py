"""The agent does this to its host on command: diagnostics, GPU resets, reboots."""
