"""The text that operators read about events, in the command line and in alerts."""
