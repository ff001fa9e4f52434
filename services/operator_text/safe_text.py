r"""Text of messages as a terminal, a log line or a page may show it. Pure.

A fault's message, a name or a provider's error can contain characters that a terminal obeys or
hides: controls, bidirectional overrides, line separators, zero-width characters. They are shown
escaped as in JSON (`\u001b`), so an escaped JSON document is the same document.
"""

import json
import re
from typing import Final

_OTHER: Final = re.compile(r"[^\n\x20-\x7e]+")
_OTHER_AND_BREAKS: Final = re.compile(r"[^\x20-\x7e]+")
_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)
"""Letters and marks that Unicode calls printable and that show nothing."""


def escape(text: str) -> str:
    """The text with every character escaped that does not show as itself; line breaks are kept."""
    return _OTHER.sub(_escaped, text)


def escape_line(text: str) -> str:
    """The same on one line: line breaks are escaped too."""
    if text.isascii() and text.isprintable():
        return text
    return _OTHER_AND_BREAKS.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return "".join(each if _is_visible(each) else json.dumps(each)[1:-1] for each in found[0])


def _is_visible(character: str) -> bool:
    return character.isprintable() and not _BLANK.match(character)
