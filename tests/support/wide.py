"""Whether tests that take long do all that they can, as by night, or what there is time for."""

import os
from typing import Final

WHOLE: Final = os.environ.get("CRASH_MATRIX") == "whole"
"""As in `make crash-matrix`."""
