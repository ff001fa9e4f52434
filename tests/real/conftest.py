"""Fixtures of the tests against real parts."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are for one user alone."""
    with TemporaryDirectory(prefix="navarch-real-") as name:
        Path(name).chmod(0o755)
        yield Path(name)
