"""Colours of the command line's text. Pure.

A style is a lone surrogate in the text. UTF-8 and JSON have none, so no message can contain a
style; the terminal's own sequences are written last, by `to_terminal`.
"""

import re
from typing import Final

from services.operator_text.event_text import Tone
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


def to_terminal(text: str) -> str:
    """The text as it is written to a terminal: styles as its sequences, the rest escaped."""
    return "".join(_SEQUENCES.get(part) or escape(part) for part in _STYLE.split(text))
