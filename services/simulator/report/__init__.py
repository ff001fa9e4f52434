"""The report of a stress run, as JSON and as one HTML page."""
