"""What the command line says to people, as text."""
