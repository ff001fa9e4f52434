"""Keeps the agent's wheels beside what is served: each machine is given these and no others.

They are one archive with a list of their hashes, which the machine checks before it installs, and
requirements by which pip refuses every other file.
"""

import hashlib
import io
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from services.primitives.atomic_files import write_whole
from services.primitives.errors import NavarchError

WHEELS_BYTES_MAX: Final = 256 * 1_048_576
FILE: Final = "agent-wheels.tar"
"""In the data directory."""
SUMS: Final = "SHA256SUMS"
REQUIREMENTS: Final = "requirements.txt"
OWN: Final = "navarch"
EXTRA: Final = "credentials"
WHEEL: Final = re.compile(
    r"(?P<name>[A-Za-z0-9_.]+)-(?P<version>[A-Za-z0-9_.!+]+)(-[\w.]+){3,4}\.whl"
)
SUM: Final = re.compile(r"(?P<digest>[0-9a-f]{64})  (?P<name>[\w.!+-]+)")
DIGEST_CHARS: Final = 12
MAKE: Final = "pip wheel -w {folder} 'navarch-….whl[credentials]'"


class AgentWheels(NamedTuple):
    """Holds the wheels as an archive, and what tells them from others."""

    packed: bytes = b""
    """Empty: there are none."""
    release: str = ""
    """Version and short digest: two builds of one version differ."""


def packed_wheels(files: Mapping[str, bytes], folder: str) -> AgentWheels:
    """Return wheels by their names as an archive; NavarchError where one is missing. Pure."""
    if (size := sum(map(len, files.values()))) > WHEELS_BYTES_MAX:
        raise NavarchError(f"{folder} has wheels of {size} bytes; {WHEELS_BYTES_MAX} are the limit")
    found = {name: match for name in sorted(files) if (match := WHEEL.fullmatch(name))}
    if odd := sorted(files.keys() - found.keys()):
        raise NavarchError(f"{folder} has {odd[0]}, which is no wheel's name")
    own = [match for match in found.values() if match["name"] == OWN]
    if len(own) != 1:
        has = "several wheels navarch-….whl: keep one" if own else "no wheel navarch-….whl"
        raise NavarchError(f"{folder} has {has}; make them: {MAKE.format(folder=folder)}")
    hashes = {name: hashlib.sha256(files[name]).hexdigest() for name in found}
    sums = "".join(f"{digest}  {name}\n" for name, digest in hashes.items())
    pinned: dict[str, str] = {}
    versions: dict[str, str] = {}
    for name, match in found.items():
        if versions.setdefault(match["name"], match["version"]) != match["version"]:
            raise NavarchError(f"{folder} has two versions of {match['name']}: keep one")
        extra = f"[{EXTRA}]" if match["name"] == OWN else ""
        wanted = f"{match['name']}{extra}=={match['version']}"
        pinned[wanted] = f"{pinned.get(wanted, '')} --hash=sha256:{hashes[name]}"
    lines = "".join(f"{wanted}{more}\n" for wanted, more in pinned.items())
    whole = {SUMS: sums.encode(), REQUIREMENTS: lines.encode(), **{e: files[e] for e in found}}
    release = f"{own[0]['version']}+{hashlib.sha256(sums.encode()).hexdigest()[:DIGEST_CHARS]}"
    return AgentWheels(_archive(whole), release)


def unpacked_wheels(packed: bytes, source: str) -> AgentWheels:
    """Return the wheels of an archive; NavarchError where one is not what was kept. Pure."""
    try:
        files = _members(packed)
        sums = files.pop(SUMS).decode().splitlines()
        files.pop(REQUIREMENTS)
    except (tarfile.TarError, KeyError, UnicodeDecodeError) as error:
        raise NavarchError(f"{source} is damaged ({error}): join again with --wheels") from error
    wanted = {m["name"]: m["digest"] for each in sums if (m := SUM.fullmatch(each))}
    for name in sorted(wanted.keys() | files.keys()):
        if name not in files or hashlib.sha256(files[name]).hexdigest() != wanted.get(name):
            raise NavarchError(
                f"{source}: {name} is missing, or not the file that was kept; it is not installed: "
                "join again with --wheels"
            )
    return packed_wheels(files, source)


def read_wheels(folder: Path) -> AgentWheels:
    """Return the wheels of a folder."""
    try:
        files = {each.name: each.read_bytes() for each in folder.glob("*.whl")}
    except OSError as error:
        raise NavarchError(f"{error.filename or folder}: {error.strerror}") from error
    return packed_wheels(files, str(folder))


def keep_wheels(folder: Path, data: Path) -> AgentWheels:
    """Keep the wheels of a folder in the data directory, in place of earlier ones."""
    found = read_wheels(folder)
    try:
        write_whole(data / FILE, found.packed)
    except OSError as error:
        raise NavarchError(f"{data / FILE} cannot be written: {error.strerror}") from error
    return found


def kept_wheels(data: Path) -> AgentWheels:
    """Return the wheels that are kept in the data directory, if there are any."""
    try:
        packed = (data / FILE).read_bytes()
    except FileNotFoundError:
        return AgentWheels()
    except OSError as error:
        raise NavarchError(f"{data / FILE} cannot be read: {error.strerror}") from error
    return unpacked_wheels(packed, str(data / FILE))


def with_files(packed: bytes, more: Mapping[str, bytes]) -> bytes:
    """Return an archive of wheels with files beside them. Pure."""
    return _archive({**_members(packed), **more})


def _members(packed: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        read = {each.name: archive.extractfile(each) for each in archive if each.isreg()}
        return {name: data.read() for name, data in read.items() if data is not None}


def _archive(files: Mapping[str, bytes]) -> bytes:
    """Return files as a tar archive, the same for the same files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
