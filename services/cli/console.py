"""Prints answers and streams on stdout: words for people, JSON for programs."""

import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from enum import StrEnum
from typing import Any, Final

import msgspec

from schemas.messages import Invalid, Message, UnknownType, encode
from services.bus.port import Stored

INVALID_CHARS_MAX: Final = 4096


class Format(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"


def colour() -> bool:
    """Whether stdout is a terminal whose owner has not asked for no colour."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def say(text: str) -> None:
    """Print a line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def document(value: Any) -> None:
    """Print one JSON document: bytes that are JSON already, or a value."""
    data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    say(msgspec.json.format(data, indent=2).decode())


def array(items: Sequence[msgspec.Raw]) -> bytes:
    """Join items that are JSON already."""
    return b"[" + b",".join(bytes(each) for each in items) + b"]"


def message(told: Message, output: Format) -> None:
    """Print one message."""
    from services.cli.text import event_text, tables  # noqa: PLC0415

    if output is Format.JSON:
        document(encode(told))
    else:
        say(tables.event_line(told.time, event_text.tell(told), colour=colour()))


async def stream(
    messages: AsyncGenerator[Stored, None], output: Format, *, count: int = 0
) -> Message | UnknownType | Invalid | None:
    """Print a line a message, at once, until `count` (0: no end); return the last."""
    from services.cli.text import event_text, tables  # noqa: PLC0415
    from services.cli.text.node_timeline import decode  # noqa: PLC0415

    last: Message | UnknownType | Invalid | None = None
    printed = 0
    async with aclosing(messages):
        async for stored in messages:
            last = decode(stored)
            if output is Format.JSON:
                say(json_line(stored))
            else:
                say(tables.event_line(stored.time, event_text.tell(last), colour=colour()))
            printed += 1
            if printed == count:
                break
    return last


def json_line(stored: Stored) -> str:
    """The stored JSON on one line; what is none stands in quotes, with its subject."""
    try:
        return msgspec.json.format(stored.data, indent=-1).decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = stored.data[:INVALID_CHARS_MAX].decode("utf-8", "replace")
        return msgspec.json.encode({"subject": stored.subject, "invalid": text}).decode()
