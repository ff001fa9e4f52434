"""Writes JSON with as much in a line as fits, for pages."""

import json
from typing import Any, Final

COLUMNS: Final = 120


def written(value: Any, indent: str = "") -> str:
    """Return JSON with as much in a line as fits."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= COLUMNS or not isinstance(value, list | dict):
        return line
    more = f"{indent}  "
    if isinstance(value, list):
        opened, closed, parts = "[", "]", [written(each, more) for each in value]
    else:
        opened, closed = "{", "}"
        parts = [f"{json.dumps(key)}: {written(each, more)}" for key, each in value.items()]
    lines = [parts[0]]
    for part in parts[1:]:
        if "\n" not in f"{lines[-1]}{part}" and len(f"{more}{lines[-1]}, {part}") <= COLUMNS:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    inside = f",\n{more}".join(lines)
    return f"{opened}\n{more}{inside}\n{indent}{closed}"
