"""The async shell that every service shares: bus, consumer loop, set-up, clock, process life."""
