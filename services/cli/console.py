"""Prints on stdout: text for operators, JSON for programs."""

import os
import shutil
import sys
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import msgspec

from schemas.messages import Message, encode
from services.bus.port import Stored
from services.cli.text import table_layout, tables
from services.cli.text.styles import to_terminal, wrapped
from services.operator_text.event_text import describe, describe_stored
from services.operator_text.safe_text import escape

INVALID_CHARS_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Format:
    """Selects how an answer is printed."""

    kind: str = "table"
    """One of KINDS, or of LISTING_KINDS."""
    path: str = ""
    """The JSONPath of what is printed, of the kind `jsonpath`."""

    TABLE: ClassVar["Format"]
    WIDE: ClassVar["Format"]
    """A table with more columns, where a command has them."""
    JSON: ClassVar["Format"]
    YAML: ClassVar["Format"]

    def __str__(self) -> str:
        return f"{self.kind}={self.path}" if self.path else self.kind

    @property
    def is_data(self) -> bool:
        """Return whether the format is for programs."""
        return self.kind in {"json", "yaml", JSONPATH}


Format.TABLE, Format.WIDE = Format(), Format("wide")
Format.JSON, Format.YAML = Format("json"), Format("yaml")
JSONPATH: Final = "jsonpath"
KINDS: Final = ("table", "wide", "json", "yaml")
LISTING_KINDS: Final = (*KINDS, "name")


@dataclass(frozen=True, slots=True)
class Listing(Format):
    """Selects how a list is printed: also which columns, and in which order."""

    columns: tuple[str, ...] = ()
    sort_by: str = ""
    titled: bool = True

    @property
    def is_bare(self) -> bool:
        """Return whether only the rows are wanted, without what is said beside them."""
        return self.kind == "name" or not self.titled

    @property
    def is_wide(self) -> bool:
        """Return whether every column may be wanted."""
        return self.kind == "wide" or bool(self.columns or self.sort_by)


LISTING: Final = Listing()


def colour() -> bool:
    """Return whether stdout is a terminal and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def width() -> int:
    """Return how many characters a line of the terminal has room for; 0: it is no terminal.

    `COLUMNS` counts on a terminal alone: a script that inherits it reads whole lines.
    """
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def write(text: str, *, exactly: bool = False) -> None:
    """Print text that `text` made, and flush: nothing in it is obeyed by the terminal.

    Lines are broken between words where the terminal is narrower, but `exactly`: to be copied.
    """
    if not exactly and (columns := width()):
        text = wrapped(text, columns)
    sys.stdout.write(f"{to_terminal(text)}\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Say something beside the output, on stderr."""
    line = f"navarch: {escape(text)}"
    columns = shutil.get_terminal_size().columns if sys.stderr.isatty() else 0
    sys.stderr.write(f"{wrapped(line, columns) if columns else line}\n")


def write_data(output: Format, value: Any) -> None:
    """Print one document: JSON bytes, or a value to encode."""
    data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    match output.kind:
        case "yaml":
            text = _yaml(data)
        case "jsonpath":
            text = "\n".join(_found(data, output.path))
            if not text:
                return
        case _:
            text = msgspec.json.format(data, indent=2).decode()
    write(text, exactly=True)


def json_path(text: str) -> Any:
    """Compile a JSONPath, also in the braces and with the leading dot of kubectl; or ValueError."""
    # Loaded where it is used: it takes as long as many a command.
    from jsonpath_ng.exceptions import JSONPathError  # noqa: PLC0415
    from jsonpath_ng.ext.parser import parse  # noqa: PLC0415

    inside = text.removeprefix("{").removesuffix("}") if text.startswith("{") else text
    path = f"${inside}" if inside.startswith((".", "[")) else inside
    try:
        return parse(path)
    except (JSONPathError, AttributeError, TypeError) as error:
        raise ValueError(f"{text!r} is no JSONPath: {error}") from error


def _found(data: bytes, path: str) -> Iterator[str]:
    """Yield each value that a JSONPath finds: a text as it is, anything else as JSON."""
    for match in json_path(path).find(msgspec.json.decode(data)):
        value = match.value
        yield value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _yaml(data: bytes) -> str:
    import yaml  # noqa: PLC0415 - keeps the other commands quick

    # In ASCII, every other character is escaped as in JSON: the document stays the same.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(msgspec.json.decode(data), Dumper=dumper, sort_keys=False, width=1_000)
    return text.rstrip()


def room(output: Format) -> int:
    """Return how wide a table may be; 0: `-o wide` has every column."""
    return 0 if output.kind == "wide" else width()


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    output: Format = Format.TABLE,
    *,
    painted: bool = True,
) -> str:
    """Return a table that fits the terminal; `painted`: rows about something wrong are coloured."""
    return table_layout.columns(headers, rows, colour=painted and colour(), width=room(output))


def write_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    empty: str = "",
    output: Format = LISTING,
) -> None:
    """Print a table, or `empty` if it has no rows."""
    names: tuple[str, ...] = ()
    titled = True
    if isinstance(output, Listing):
        names, titled = output.columns, output.titled
        if output.kind == "name":
            names, titled = (table_layout.name_header(headers),), False
        headers, rows = table_layout.chosen(headers, rows, names=names, sort_by=output.sort_by)
    if rows or (titled and not empty):
        # Columns that are asked for stay.
        most = 0 if names else room(output)
        write(table_layout.columns(headers, rows, colour=colour(), width=most, titled=titled))
    elif titled:
        write(empty)


def write_message(message: Message, output: Format) -> None:
    """Print one message."""
    if output.is_data:
        write_data(output, encode(message))
    else:
        write(tables.event_line(message.time, describe(message), colour=colour()))


async def write_stream(
    batches: AsyncGenerator[Sequence[Stored], None], output: Format, *, count: int = 0
) -> Stored | None:
    """Print each batch as it arrives, up to `count` messages (0: no limit); return the last."""

    def line(stored: Stored) -> str:
        if output.is_data:
            return document(json_line(stored), output)
        return tables.event_line(stored.time, describe_stored(stored), colour=coloured)

    last, coloured, printed = None, colour(), 0
    async with aclosing(batches):
        async for batch in batches:
            shown = batch[: count - printed] if count else batch
            if shown:
                write("\n".join(map(line, shown)), exactly=output.is_data)
                last = shown[-1]
            printed += len(shown)
            if count and printed == count:
                break
    return last


def document(line: str, output: Format) -> str:
    """Return one document of several, of its JSON on one line."""
    match output.kind:
        case "yaml":
            return f"---\n{_yaml(line.encode())}"
        case "jsonpath":
            return "\n".join(_found(line.encode(), output.path))
    return line


def json_line(stored: Stored) -> str:
    """The stored JSON on one line; data that is not JSON is quoted, with its subject."""
    try:
        return msgspec.json.format(stored.data, indent=-1).decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = stored.data[:INVALID_CHARS_MAX].decode("utf-8", "replace")
        return msgspec.json.encode({"subject": stored.subject, "invalid": text}).decode()
