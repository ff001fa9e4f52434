"""Where capacity may come from, what is chosen of it, and what is remembered of it: pure."""
