"""Translates the original project's spellings of autoscalers into the current ones. Pure."""

from collections.abc import Iterator
from typing import Any, Final, Protocol

from services.settings.yaml_document import Path_

RENAMED_OPTIONS: Final = {
    "scale_up_threshold": "scale_up_at",
    "scale_down_threshold": "scale_down_at",
    "lookback_window": "window",
}
DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
"""In the order of their numbers in a cron expression."""
HOURS: Final = 24
PERIOD: Final = (
    "`days`, `start` and `end` are now `start` (a cron expression) and `duration`, in the time "
    "zone `timezone`, else in UTC"
)


class Editor(Protocol):
    """Declares the edits that a translation is made of; see `dialect`."""

    def get(self, path: Path_, default: Any = None) -> Any:
        """Return the value at a path."""

    def take(self, path: Path_) -> Any:
        """Remove the value at a path, and return it."""

    def put(self, path: Path_, value: Any, written: Path_, text: str) -> None:
        """Set a value that was written at another path."""

    def rename(self, old: Path_, new: Path_) -> None:
        """Move what is at a path."""

    def problem(self, path: Path_, text: str) -> None:
        """Keep a problem."""


class OldAutoscaling:
    """Translates an autoscaler at `path`, and those within it."""

    def __init__(self, editor: Editor, path: Path_) -> None:
        self._editor = editor
        self._path = path

    def translate(self) -> None:
        """Translate it; what is no mapping is left to the schema."""
        if not isinstance(self._editor.get(self._path), dict):
            return
        for old, new in RENAMED_OPTIONS.items():
            self._editor.rename((*self._path, old), (*self._path, new))
        for path in self._periods():
            self._translate_period(path)
        for path in list(self._inner()):
            OldAutoscaling(self._editor, path).translate()

    def _periods(self) -> Iterator[Path_]:
        listed = self._editor.get((*self._path, "schedule"))
        for number, each in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(each, dict):
                yield (*self._path, "schedule", number)

    def _inner(self) -> Iterator[Path_]:
        yield (*self._path, "fallback")
        listed = self._editor.get((*self._path, "autoscalers"))
        count = len(listed) if isinstance(listed, list) else 0
        yield from ((*self._path, "autoscalers", number) for number in range(count))
        yield from ((*path, "autoscaler") for path in self._periods())

    def _translate_period(self, path: Path_) -> None:
        """Days and hours become a cron expression and a duration."""
        edit = self._editor
        edit.rename((*path, "fallback"), (*path, "autoscaler"))
        given = edit.get(path)
        hours = [given.get(key, given.get(f"{key}_hour")) for key in ("start", "end")]
        if "days" not in given and all(each is None or isinstance(each, str) for each in hours):
            return
        if not all(type(each) is int and 0 <= each <= HOURS for each in hours):
            edit.problem(path, "needs `start` and `end`, hours from 0 to 24: `start: 9`, `end: 18`")
            return
        start, end = hours
        if start in (end, HOURS):
            edit.problem(path, f"begins at {start} and ends at {end}, so it never is; correct one")
            return
        days = _numbers(given.get("days"))
        if days is None:
            edit.problem((*path, "days"), "must be a list of days: monday, tuesday …")
            return
        written = (*path, next(key for key in ("start", "start_hour") if key in given))
        for key in ("days", "start", "end", "start_hour", "end_hour"):
            given.pop(key, None)
        # The original never enters a period that ends before it begins; here it ends the next day.
        duration = f"{(end - start) % HOURS or HOURS}h"
        edit.put((*path, "start"), f"0 {start} * * {days}", written, PERIOD)
        edit.put((*path, "duration"), duration, written, PERIOD)


def _numbers(days: Any) -> str | None:
    """Days of the week as a cron expression has them; None: they are not days."""
    if days is None or days == []:
        return "*"
    if not isinstance(days, list):
        return None
    short = [str(each).lower()[:3] for each in days]
    if not set(short) <= set(DAYS):
        return None
    return ",".join(str(DAYS.index(each)) for each in sorted(set(short), key=DAYS.index))
