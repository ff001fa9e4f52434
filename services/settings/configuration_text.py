"""The text of a configuration: that of its file, or the copy of it that is in force.

`navarch serve` gives its processes a copy of what it has checked, so that one that is restarted
reads the same whatever the file has become meanwhile.
"""

import os
from pathlib import Path
from typing import Final

from services.primitives.errors import ConfigurationError

FILE_BYTES_MAX: Final = 4 * 1_048_576
FILE_VARIABLE: Final = "NAVARCH_CONFIG"
COPY_VARIABLE: Final = "NAVARCH_CONFIG_COPY"
"""The copy to read in place of the file that FILE_VARIABLE names."""


def read_text(path: Path) -> str:
    """Read a file; ConfigurationError where it cannot be read."""
    copy = os.environ.get(COPY_VARIABLE)
    source = Path(copy) if copy and str(path) == os.environ.get(FILE_VARIABLE) else path
    try:
        size = source.stat().st_size
        with source.open(encoding="utf-8") as file:
            # A device says nothing of its size.
            text = "" if size > FILE_BYTES_MAX else file.read(FILE_BYTES_MAX + 1)
        if max(size, len(text)) > FILE_BYTES_MAX:
            raise ConfigurationError(f"larger than {FILE_BYTES_MAX} bytes", file=str(path))
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", file=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"is not UTF-8: {error}", file=str(path)) from error
    return text
