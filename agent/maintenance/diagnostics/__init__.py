"""Tests of the host that somebody or a schedule asks for: boot checks, tools, plugins.

Each runs in a process or a thread of its own, under a deadline; the loop never waits for one. What
a tool prints is read by pure parsers. What a failure means for the node is judged elsewhere.
"""
