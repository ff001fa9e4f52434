"""Help that lists the commands by what they are for."""

from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

from typer.core import TyperGroup

SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "See the fleet": (
        "status",
        "list",
        "get",
        "pool",
        "top",
        "instances",
        "leaked",
        "offerings",
        "alerts",
    ),
    "Understand": (
        *("doctor", "why", "events", "timeline", "audit", "evidence", "logs", "report", "cost"),
        "policy",
    ),
    "Operate nodes": (
        *("cordon", "uncordon", "drain", "replace", "reset-gpu", "reboot", "terminate"),
        *("diagnose", "hold", "release", "readmit", "ssh"),
    ),
    "Operate pools": ("up", "down", "scale", "saga", "breaker", "sweep", "hardware"),
    "Run and set up": (
        *("demo", "serve", "config", "nats-config", "gateway", "mcp", "workload", "slurm"),
        *("backup", "restore", "version"),
    ),
    "Try without hardware": ("simulator",),
}
"""Section of `navarch --help` -> its commands."""
NAMES: Final = frozenset(chain.from_iterable(SECTIONS.values()))


class SectionedGroup(TyperGroup):
    """The commands of `navarch`, by section."""

    def __init__(self, **attributes: Any) -> None:
        """Have every command understand `-h`."""
        attributes["context_settings"] = {
            **(attributes.get("context_settings") or {}),
            "help_option_names": ["-h", "--help"],
        }
        super().__init__(**attributes)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group of commands; those of no section come last."""
        others = [each for each in self.list_commands(ctx) if each not in NAMES]
        for title, names in (*SECTIONS.items(), ("Other", tuple(others))):
            rows = [
                (name, command.get_short_help_str(formatter.width))
                for name in names
                if (command := self.get_command(ctx, name)) is not None and not command.hidden
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
