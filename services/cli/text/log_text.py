"""Log lines of agents and services as text. Pure."""

import heapq
from collections.abc import Sequence
from typing import Final

from schemas.log_excerpts import LogExcerpt, LogLine, LogRequest
from services.cli.text.styles import BOLD, COLOURS, RESET
from services.operator_text.quantities import local_time
from services.operator_text.safe_text import escape_line

LEVEL_COLOURS: Final = {"ERROR": COLOURS["bad"], "WARN": BOLD}


def log_lines(excerpts: Sequence[LogExcerpt], lines_max: int, *, colour: bool) -> str:
    """The newest lines of all, in the order of their times; each names who wrote it."""
    by_time = heapq.merge(
        *([(each.time, excerpt.source, each) for each in excerpt.lines] for excerpt in excerpts),
        key=lambda each: each[0],
    )
    several = len(excerpts) > 1
    newest = list(by_time)[-lines_max:]
    return "\n".join(
        _line(line, source if several else "", colour=colour) for _, source, line in newest
    )


def _line(line: LogLine, source: str, *, colour: bool) -> str:
    level = escape_line(f"{line.level:<5}")
    if colour and (style := LEVEL_COLOURS.get(line.level)):
        level = f"{style}{level}{RESET}"
    origin = {"kernel": "kernel: ", "user": "kernel log, by a process: "}.get(line.origin, "")
    who = f"{escape_line(source)}  " if source else ""
    return f"{local_time(line.time)}  {level}  {who}{origin}{escape_line(line.text)}"


def statements(excerpts: Sequence[LogExcerpt], request: LogRequest) -> list[str]:
    """Return what is missing from the answers to a request, in sentences."""
    found = []
    wanted = sum(len(each.lines) for each in excerpts) < request.lines
    for each in excerpts:
        source = escape_line(each.source)
        if each.refused:
            found.append(f"{source or 'a replica'} refuses: {escape_line(each.refused)}")
        elif each.left_out:
            found.append(
                f"{source}: {each.left_out} earlier lines do not fit into one answer; "
                "ask for fewer with -n"
            )
        elif (
            wanted
            and each.kept_since is not None
            and (request.since is None or request.since < each.kept_since)
        ):
            found.append(
                f"{source} keeps its lines since {local_time(each.kept_since)}; earlier ones are "
                "in its log on its machine"
            )
    return found
