"""The output of the command line as text. Pure."""
