"""Reads and writes the files of a backup: archives, newer messages, and a manifest.

The manifest is written last, so a directory without one is no backup; it has the size and the
checksum of every file, and one of its own.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import msgspec

from schemas.value_limits import UtcTime
from services.primitives.atomic_files import OWNER_ALONE, write_secret
from services.primitives.errors import NavarchError

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1
MANIFEST_BYTES_MAX: Final = 1_048_576
READ_BYTES: Final = 131_072
"""The server takes in archives by chunks of this size."""
DIRECTORY_MODE: Final = 0o700
DAMAGED: Final = "is damaged, or of another backup: restore another one"


class SavedFile(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a file of a backup."""

    name: Annotated[str, msgspec.Meta(pattern=r"\A[A-Z][A-Za-z0-9_]*\.(archive|later)\Z")]
    """Beside the manifest: a backup that another has written names no other file of this host."""
    bytes: int
    sha256: str


class SavedStream(msgspec.Struct, frozen=True, kw_only=True):
    """Describes one stream of a backup."""

    stream: str
    state: dict[str, Any]
    """As the server described what its archive has."""
    archive: SavedFile
    later: SavedFile | None = None
    """What was stored after that, a message a line; None: it was not looked for."""
    last_sequence: int
    """The stream's last sequence at the end of the backup."""


class SavedDurable(msgspec.Struct, frozen=True, kw_only=True):
    """Records how far a durable had come."""

    stream: str
    name: str
    floor: int
    """Everything up to this sequence is settled."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a backup: its streams, durables and files."""

    format: int = FORMAT
    fleet: str
    """The fleet's ID; empty: no service had run."""
    navarch: str
    """Release that made the backup."""
    server: tuple[int, int]
    """Version of nats-server, whose archives these are."""
    began_at: UtcTime
    ended_at: UtcTime
    services: tuple[str, ...]
    """Services that ran meanwhile."""
    replicas: int
    streams: tuple[SavedStream, ...]
    durables: tuple[SavedDurable, ...]

    @property
    def files(self) -> list[SavedFile]:
        """Return every file beside the manifest."""
        found = (each for stream in self.streams for each in (stream.archive, stream.later))
        return [each for each in found if each is not None]

    @property
    def bytes(self) -> int:
        """Return the size of all files."""
        return sum(each.bytes for each in self.files)

    def stream(self, name: str) -> SavedStream | None:
        """Return one stream of the backup by its name."""
        return next((each for each in self.streams if each.stream == name), None)


class _Sealed(msgspec.Struct):
    sha256: str
    manifest: msgspec.Raw


class BackupError(NavarchError):
    """A directory cannot be written as a backup, or is none."""


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Make a directory for a backup; what is in it is removed where the backup fails."""
    try:
        directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise BackupError(f"{directory} is not empty: name a new directory for the backup")
    except OSError as error:
        raise BackupError(f"{directory} cannot be used for a backup: {error.strerror}") from error
    try:
        yield
    except BaseException as error:
        for each in directory.iterdir():
            each.unlink()
        directory.rmdir()
        if isinstance(error, OSError):
            raise BackupError(
                f"{directory}: {error.strerror}: the backup was not made, and nothing of it is left"
            ) from error
        raise


class FileWriter:
    """Writes one file of a backup."""

    def __init__(self, file: Path) -> None:
        """Make a file that is not there."""
        self._name = file.name
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ALONE)
        self._opened = os.fdopen(handle, "wb")
        self._digest = hashlib.sha256()
        self._bytes = 0

    def write(self, data: bytes) -> None:
        """Append bytes to the file."""
        self._opened.write(data)
        self._digest.update(data)
        self._bytes += len(data)

    def close(self) -> SavedFile:
        """Have it on the disk, and say what was written."""
        with self._opened:
            self._opened.flush()
            os.fsync(self._opened.fileno())
        return SavedFile(name=self._name, bytes=self._bytes, sha256=self._digest.hexdigest())

    def discard(self) -> None:
        """Leave it as it is."""
        self._opened.close()


@contextmanager
def new_file(file: Path) -> Iterator[FileWriter]:
    """A file that is closed in any case; its user closes it where all of it is written."""
    writer = FileWriter(file)
    try:
        yield writer
    finally:
        writer.discard()


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Complete a backup."""
    encoded = msgspec.json.encode(manifest)
    sealed = _Sealed(sha256=_digest_of(encoded), manifest=msgspec.Raw(encoded))
    write_secret(directory / MANIFEST, msgspec.json.encode(sealed).decode())


def read_manifest(directory: Path) -> Manifest:
    """Read what a backup is of; raise BackupError where it is none, or incomplete."""
    file = directory / MANIFEST
    try:
        sealed = msgspec.json.decode(_manifest_bytes(file), type=_Sealed)
        if _digest_of(bytes(sealed.manifest)) != sealed.sha256:
            raise BackupError(f"{file} is damaged: restore another backup")
        manifest = msgspec.json.decode(sealed.manifest, type=Manifest)
    except FileNotFoundError as error:
        raise BackupError(
            f"{directory} is no complete backup: it has no {MANIFEST}, which is written last"
        ) from error
    except OSError as error:
        raise BackupError(f"{file} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise BackupError(f"{file} is damaged ({error}): restore another backup") from error
    if manifest.format != FORMAT:
        raise BackupError(
            f"{directory} is a backup of format {manifest.format}, and this release reads format "
            f"{FORMAT}: restore it with Navarch {manifest.navarch}"
        )
    return manifest


def _manifest_bytes(file: Path) -> bytes:
    with open_plain(file) as opened:
        found = opened.read(MANIFEST_BYTES_MAX + 1)
    if len(found) > MANIFEST_BYTES_MAX:
        raise BackupError(f"{file} is longer than {MANIFEST_BYTES_MAX} bytes: {DAMAGED}")
    return found


def check_files(
    directory: Path, manifest: Manifest, progress: Callable[[str], None] = lambda _: None
) -> None:
    """Read every file of a backup, and raise BackupError for one that is not as it was written."""
    for each in manifest.files:
        progress(each.name)
        digest, size = hashlib.sha256(), 0
        try:
            if (directory / each.name).stat().st_size != each.bytes:
                raise BackupError(f"{directory / each.name} {DAMAGED}")
            for chunk in read_chunks(directory / each.name):
                digest.update(chunk)
                size += len(chunk)
        except FileNotFoundError as error:
            raise BackupError(f"{directory} is incomplete: it has no {each.name}") from error
        except OSError as error:
            raise BackupError(f"{directory / each.name}: {error.strerror}") from error
        if (size, digest.hexdigest()) != (each.bytes, each.sha256):
            raise BackupError(f"{directory / each.name} {DAMAGED}")


def read_chunks(file: Path) -> Iterator[bytes]:
    """Yield the content of a file."""
    with open_plain(file) as opened:
        while chunk := opened.read(READ_BYTES):
            yield chunk


def open_plain(file: Path) -> BinaryIO:
    """Open a file of a backup to read it; BackupError for a link, a pipe or a device."""
    try:
        # Without waiting for the other end of a pipe.
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise BackupError(f"{file} is a link: copy what it names to its place") from error
    opened = os.fdopen(handle, "rb")
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        opened.close()
        raise BackupError(f"{file} {DAMAGED}")
    return opened


def _digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
