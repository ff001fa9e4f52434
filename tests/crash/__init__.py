"""Real processes, killed at every moment that matters and at random ones, and what is left."""
