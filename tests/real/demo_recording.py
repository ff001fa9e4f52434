"""Records a run of `navarch demo` for the README: `python -m tests.real.demo_recording`."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parents[2] / "docs" / "images" / "demo.svg"
ENDS: Final = "The timeline of"
LEFT_OUT: Final = "Watch it from"
COLUMNS: Final = 124
GAP_SECONDS_MAX: Final = 1.2
"""Longer waits, as for processes to start, are cut."""
COLUMN, ROW, MARGIN, SIZE = 7.23, 17, 14, 12
COLOURS: Final = (
    (("fault ", "unhealthy ", "falls off the bus", "NVRM"), "#ff7b72"),
    (("replaced ", "saga done", "healthy ", "admitted ", "active"), "#7ee787"),
)
STYLE: Final = """
text { font: %spx ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre;
  fill: #c9d1d9; opacity: 0; animation: shown 1ms linear forwards; }
@keyframes shown { to { opacity: 1; } }
@media (prefers-reduced-motion: reduce) { text { animation-delay: 0s !important; } }
"""

Line = tuple[float, str]
"""Seconds since the recording began, and the text."""


def recorded() -> Iterator[Line]:
    """The lines of a run up to its summary, as they come."""
    command = [sys.executable, "-u", "-m", "services.cli", "demo"]
    shown, before = 0.0, time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        wanted = True
        for each in process.stdout:
            wanted = wanted and not each.startswith(ENDS)
            if not wanted or each.startswith(LEFT_OUT):
                continue
            now = time.monotonic()
            shown, before = shown + min(now - before, GAP_SECONDS_MAX), now
            yield shown, each.rstrip("\n")


def picture(lines: Sequence[Line]) -> str:
    """The lines as a picture in which each appears at its time. Pure."""
    width = round(2 * MARGIN + COLUMNS * COLUMN)
    height = 2 * MARGIN + len(lines) * ROW
    rows = [
        f'<text x="{MARGIN}" y="{MARGIN + SIZE + number * ROW}" '
        f'style="animation-delay: {at:.2f}s{colour(text)}">{escape(fitted(text))}</text>'
        for number, (at, text) in enumerate(lines)
        if text
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            "<title>A run of make demo</title>",
            f"<style>{STYLE % SIZE}</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
            *rows,
            "</svg>\n",
        ]
    )


def fitted(text: str) -> str:
    """A line that is not too long."""
    return text if len(text) <= COLUMNS else f"{text[: COLUMNS - 1]}…"


def colour(text: str) -> str:
    """The style of a line that is good or bad news."""
    for words, found in COLOURS:
        if any(each in text for each in words):
            return f"; fill: {found}"
    return ""


if __name__ == "__main__":
    FILE.write_text(picture(list(recorded())), encoding="utf-8")
