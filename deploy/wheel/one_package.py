"""Builds Navarch by setuptools, with wheels that have all modules inside the package `navarch`.

In a checkout the packages are `agent`, `schemas` and `services`. Such common names collide with
what else is installed. So the wheel that setuptools made is packed again: those folders are moved
below `navarch/`, and imports and entry points follow. An editable installation and an sdist stay as
the sources are.
"""

import ast
import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from setuptools import build_meta

build_editable = build_meta.build_editable
build_sdist = build_meta.build_sdist
get_requires_for_build_editable = build_meta.get_requires_for_build_editable
get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
get_requires_for_build_wheel = build_meta.get_requires_for_build_wheel

PACKAGE: Final = "navarch"
ROOTS: Final = ("agent", "schemas", "services")
MODULE: Final = b'"""Navarch: keeps a fleet of GPU machines healthy."""\n'
TARGET: Final = re.compile(rf"(?m)^(\S+ ?= ?)(?=(?:{'|'.join(ROOTS)})[.:])")
"""The beginning of an entry point of ours."""


def build_wheel(
    wheel_directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the wheel; without the hook for its metadata alone, installers ask this one."""
    del metadata_directory
    name = str(build_meta.build_wheel(wheel_directory, config_settings))
    pack_again(Path(wheel_directory, name))
    return name


def pack_again(wheel: Path) -> None:
    """Move the packages below the one, and write the wheel's record again."""
    with ZipFile(wheel) as before:
        files = dict(moved(before))
        times = {each.filename: each.date_time for each in before.infolist()}
    moment = max(times.values())
    [record] = [name for name in files if name.endswith(".dist-info/RECORD")]
    del files[record]
    lines = [f"{name},sha256={digest(data)},{len(data)}\n" for name, data in files.items()]
    files[record] = "".join([*lines, f"{record},,\n"]).encode()
    with ZipFile(wheel, "w", ZIP_DEFLATED) as after:
        for name, data in files.items():
            kept = ZipInfo(name, times.get(name.removeprefix(f"{PACKAGE}/"), moment))
            kept.external_attr = 0o100644 << 16
            kept.compress_type = ZIP_DEFLATED
            after.writestr(kept, data)


def moved(wheel: ZipFile) -> Iterator[tuple[str, bytes]]:
    """Every file of the wheel, where it belongs and as it must be there."""
    yield f"{PACKAGE}/__init__.py", MODULE
    yield f"{PACKAGE}/py.typed", b""
    for name in wheel.namelist():
        data, folder = wheel.read(name), name.partition("/")[0]
        if folder in ROOTS:
            yield f"{PACKAGE}/{name}", inside(data) if name.endswith(".py") else data
        elif name.endswith(".dist-info/entry_points.txt"):
            yield name, TARGET.sub(rf"\g<1>{PACKAGE}.", data.decode()).encode()
        elif name.endswith(".dist-info/top_level.txt"):
            yield name, f"{PACKAGE}\n".encode()
        elif folder != PACKAGE:
            yield name, data


def inside(source: bytes) -> bytes:
    """Return a module whose imports of the packages are of those inside the one. Pure."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(level=0, module=str(name)) if name.partition(".")[0] in ROOTS:
                insert(lines, node.lineno, node.col_offset + len(b"from "))
            case ast.Import(names=names):
                for each in names:
                    if each.name.partition(".")[0] in ROOTS:
                        check_binding(each)
                        insert(lines, each.lineno, each.col_offset)
    return b"".join(lines)


def insert(lines: list[bytes], number: int, column: int) -> None:
    """Name the package before a module's name; one statement a line, as the formatter leaves it."""
    line = lines[number - 1]
    if not line[column:].startswith(tuple(each.encode() for each in ROOTS)):
        raise ValueError(f"an import that is not understood: {line.decode().strip()}")
    lines[number - 1] = line[:column] + f"{PACKAGE}.".encode() + line[column:]


def check_binding(alias: ast.alias) -> None:
    """Raise ValueError for `import services`: its name would be another one."""
    if "." not in alias.name and alias.asname is None:
        raise ValueError(f"import {alias.name}: import from it instead")


def digest(data: bytes) -> str:
    """A file's hash, as a wheel's record has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
