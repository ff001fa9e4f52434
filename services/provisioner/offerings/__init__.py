"""Where capacity may come from, which offering a launch takes, and what is blocked."""
