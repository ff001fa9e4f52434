"""The agent runs on a GPU node: it reports and obeys, and decides nothing about its own life."""
