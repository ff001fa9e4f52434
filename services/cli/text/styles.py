"""Holds the styles of text for a terminal, and writes them as its sequences. Pure."""

import re
from typing import Final

from schemas.event_texts import Tone
from services.operator_text.safe_text import escape

RESET: Final = "\ud800"
BOLD: Final = "\ud801"
DIM: Final = "\ud802"
_GREEN: Final = "\ud803"
_RED: Final = "\ud804"
COLOURS: Final[dict[Tone, str]] = {"good": _GREEN, "bad": _RED, "plain": ""}
_SEQUENCES: Final = {
    RESET: "\x1b[0m",
    BOLD: "\x1b[1m",
    DIM: "\x1b[2m",
    _GREEN: "\x1b[32m",
    _RED: "\x1b[31m",
}
_STYLE: Final = re.compile(f"([{RESET}-{_RED}])")
_BLANKS: Final = re.compile("( +)")
INDENT: Final = "  "
"""Of what is wrapped, beside the indent of its line."""


def to_terminal(text: str) -> str:
    """Return the text as it is written to a terminal: styles as its sequences, the rest escaped.

    A style is a lone surrogate in the text. UTF-8 and JSON have none, so no message can contain a
    style; the terminal's own sequences are written last, by `to_terminal`.
    """
    return "".join(_SEQUENCES.get(part) or escape(part) for part in _STYLE.split(text))


def wrapped(text: str, width: int) -> str:
    """Return the text with each line broken between words where it is wider than the terminal."""
    lines = text.split("\n")
    if all(len(line) <= width for line in lines):
        return text
    return "\n".join("\n".join(_wrapped_line(line, width)) for line in lines)


def _wrapped_line(line: str, width: int) -> list[str]:
    """Break one line; what does not fit goes on below, a little further in."""
    if len(line) <= width or _length(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip(" "))] + INDENT
    found, current = [], ""
    for part in _BLANKS.split(line):
        if _length(current + part) <= width or not current.strip():
            current += part
        elif part.strip():
            found.append(current.rstrip())
            current = indent + part
        else:
            current += " "  # a break may follow
    return [*found, current.rstrip()]


def _length(text: str) -> int:
    return len(_STYLE.sub("", text))
