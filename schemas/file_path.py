"""The type of settings that name a file or a folder."""

from typing import Annotated, Final

import msgspec

PATH_MARK: Final = "path"
FilePath = Annotated[str, msgspec.Meta(extra={PATH_MARK: True})]
"""A file or folder; relative to the configuration's file, `~` is the home directory."""
