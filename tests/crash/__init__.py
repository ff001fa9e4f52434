"""Real processes, killed at every relevant and at random moments, and the state afterwards."""
