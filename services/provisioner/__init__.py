"""Makes and removes instances; never more than intended, never one forgotten."""
