"""Prints on stdout: text for operators, JSON for programs."""

import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from enum import StrEnum
from typing import Any, Final

import msgspec

from schemas.messages import Message, encode
from services.bus.port import Stored
from services.cli.text import tables
from services.cli.text.tables import to_terminal
from services.operator_text.event_text import describe, describe_stored
from services.operator_text.safe_text import escape

INVALID_CHARS_MAX: Final = 4096


class Format(StrEnum):
    """Selects how an answer is printed."""

    TABLE = "table"
    WIDE = "wide"
    """A table with more columns, where a command has them."""
    JSON = "json"
    YAML = "yaml"

    @property
    def is_data(self) -> bool:
        """Return whether the format is for programs."""
        return self in {Format.JSON, Format.YAML}


def colour() -> bool:
    """Return whether stdout is a terminal and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def write(text: str) -> None:
    """Print text that `text` made, and flush: nothing in it is obeyed by the terminal."""
    sys.stdout.write(f"{to_terminal(text)}\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Say something beside the output, on stderr."""
    sys.stderr.write(f"navarch: {escape(text)}\n")


def write_data(output: Format, value: Any) -> None:
    """Print one document: JSON bytes, or a value to encode."""
    data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    write(_yaml(data) if output is Format.YAML else msgspec.json.format(data, indent=2).decode())


def _yaml(data: bytes) -> str:
    import yaml  # noqa: PLC0415 - keeps the other commands quick

    # In ASCII, every other character is escaped as in JSON: the document stays the same.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(msgspec.json.decode(data), Dumper=dumper, sort_keys=False, width=1_000)
    return text.rstrip()


def write_table(headers: Sequence[str], rows: Sequence[Sequence[str]], empty: str = "") -> None:
    """Print a table, or `empty` if it has no rows."""
    if rows or not empty:
        write(tables.columns(headers, rows, colour=colour()))
    else:
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
                write("\n".join(map(line, shown)))
                last = shown[-1]
            printed += len(shown)
            if count and printed == count:
                break
    return last


def document(line: str, output: Format) -> str:
    """Return one document of several, of its JSON on one line."""
    return f"---\n{_yaml(line.encode())}" if output is Format.YAML else line


def json_line(stored: Stored) -> str:
    """The stored JSON on one line; data that is not JSON is quoted, with its subject."""
    try:
        return msgspec.json.format(stored.data, indent=-1).decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = stored.data[:INVALID_CHARS_MAX].decode("utf-8", "replace")
        return msgspec.json.encode({"subject": stored.subject, "invalid": text}).decode()
