"""Tests of the host at boot, on command or by schedule: boot checks, tools, plugins.

Each runs in a process or a thread of its own, under a deadline; the loop never waits for one. What
a tool prints is read by pure parsers. The health policy rates failures.
"""
