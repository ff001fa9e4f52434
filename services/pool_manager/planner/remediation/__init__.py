"""What is done about sick nodes, which are acted on now, and what is only said."""
