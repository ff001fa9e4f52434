"""Keeps out the command lines of libraries: imported before the libraries are."""

import sys
from types import ModuleType
from typing import Final

COMMAND_LINES: Final = ("cel.cli", "httpx._main")
"""Loaded with their packages, and of no use to a process that is none of them."""

for _name in COMMAND_LINES:
    sys.modules.setdefault(_name, ModuleType(_name))
