"""The fleet for programs that speak the Model Context Protocol."""
