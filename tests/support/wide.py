"""Decides whether tests that take long do all that they can, as in a nightly run."""

import os
from typing import Final

WHOLE: Final = os.environ.get("CRASH_MATRIX") == "whole"
"""As in `make crash-matrix`."""
