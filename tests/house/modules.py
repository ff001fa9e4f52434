"""The modules of the repository, parsed once for all house tests."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


@functools.cache
def _read(path: Path) -> tuple[ast.Module, str]:
    text = path.read_text(encoding="utf-8")
    return ast.parse(text), text


def modules(*folders: str) -> Iterator[tuple[str, ast.Module, str]]:
    """Yield every module under the folders: its path from the root, its tree, its text."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), *_read(path)
