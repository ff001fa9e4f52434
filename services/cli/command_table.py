"""The commands of `navarch`, each in a module that is imported where it is wanted; their help.

A command waits for its imports: most of its time. So one command is made without the others, and
all of them only for `--help`, completion, and the documentation.
"""

from collections.abc import Mapping
from importlib import import_module
from itertools import chain
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from services.cli.command_examples import epilog, with_examples
from services.primitives.module_names import installed_name

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
        *(
            "doctor",
            "why",
            "watch",
            "events",
            "timeline",
            "audit",
            "evidence",
            "logs",
            "report",
            "incident",
            "cost",
        ),
        "policy",
    ),
    "Operate nodes": (
        *("cordon", "uncordon", "drain", "replace", "reset-gpu", "reboot", "terminate"),
        *("diagnose", "hold", "release", "readmit", "identity", "ssh", "join", "leave"),
        "forget",
        "drill",
    ),
    "Operate pools": (
        *("up", "down", "scale", "saga", "breaker", "stop", "resume", "sweep", "hardware"),
    ),
    "Run and set up": (
        *("demo", "init", "serve", "config", "nats-config", "gateway", "mcp", "workload"),
        *("slurm", "plugins", "nats-context", "backup", "restore", "version"),
    ),
    "Try without hardware": ("simulator",),
}
"""Section of `navarch --help` -> its commands."""
NAMES: Final = frozenset(chain.from_iterable(SECTIONS.values()))
MODULES: Final = installed_name("services.cli.commands.")
GROUPS: Final = {
    "alerts": "alert_commands",
    "policy": "policy_commands",
    "config": "config_commands",
    "saga": "saga_commands",
    "pool": "pool_commands",
    "breaker": "breaker_commands",
    "hardware": "hardware_commands",
    "identity": "identity_commands",
    "nats-config": "nats_config_commands",
    "gateway": "gateway_commands",
    "workload": "workload_commands",
    "plugins": "plugin_commands",
    "slurm": "slurm_power_commands",
    "simulator": "simulator.simulator_commands",
}
"""Name of a group -> the module with its `commands`."""
COMMANDS: Final = {
    "get": "query_commands:get",
    "events": "query_commands:events",
    "timeline": "query_commands:timeline",
    "why": "query_commands:why",
    "watch": "watch_command:watch",
    "status": "view_commands:status",
    "top": "top_command:top",
    "doctor": "overview_commands:doctor",
    "diagnose": "diagnostic_commands:diagnose",
    "logs": "diagnostic_commands:logs",
    "version": "overview_commands:version",
    "list": "view_commands:list_nodes",
    "instances": "instance_commands:instances",
    "leaked": "instance_commands:leaked",
    "audit": "query_commands:audit",
    "evidence": "evidence_command:evidence",
    "report": "report_commands:report",
    "incident": "incident_command:incident",
    "cost": "report_commands:cost",
    "offerings": "offerings_command:offerings",
    "mcp": "mcp_command:mcp",
    "cordon": "node_commands:cordon",
    "uncordon": "node_commands:uncordon",
    "drain": "node_commands:drain",
    "replace": "node_commands:replace",
    "reset-gpu": "node_commands:reset_gpu",
    "reboot": "node_commands:reboot",
    "terminate": "node_commands:terminate",
    "sweep": "instance_commands:sweep",
    "up": "up_command:up",
    "down": "up_command:down",
    "ssh": "ssh_command:ssh",
    "join": "join_commands:join",
    "leave": "join_commands:leave",
    "forget": "join_commands:forget",
    "drill": "drill_command:drill",
    "hold": "node_commands:hold",
    "release": "node_commands:release",
    "readmit": "instance_commands:readmit",
    "scale": "scale_command:scale",
    "stop": "stop_commands:stop",
    "resume": "stop_commands:resume",
    "init": "init_command:init",
    "serve": "run_commands:serve",
    "backup": "backup_commands:backup",
    "restore": "backup_commands:restore",
    "demo": "run_commands:demo",
    "nats-context": "nats_context_command:nats_context",
}
"""Name of a command -> its module and function."""
CONTEXTS: Final[dict[str, dict[str, Any]]] = {"ssh": {"ignore_unknown_options": True}}
"""How arguments are read, where it is particular."""


class SectionedGroup(TyperGroup):
    """Groups the commands of `navarch` by section."""

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


def command_line(wanted: str = "") -> typer.Typer:
    """One command or group by its name; all of them where there is none of that name."""
    app = typer.Typer(
        name="navarch",
        help="Keeps a GPU fleet healthy.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        cls=SectionedGroup,
    )
    app.callback()(navarch)
    one = {wanted} & (GROUPS.keys() | COMMANDS.keys())
    for name in one or GROUPS:
        if module := GROUPS.get(name):
            app.add_typer(with_examples(import_module(MODULES + module).commands, name), name=name)
    for name in one or COMMANDS:
        if place := COMMANDS.get(name):
            module, _, function = place.partition(":")
            found = getattr(import_module(MODULES + module), function)
            app.command(name, context_settings=CONTEXTS.get(name), epilog=epilog(name))(found)
    return app


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version  # noqa: PLC0415

        from services.cli import console  # noqa: PLC0415

        console.write(f"navarch {version('navarch')}")
        raise typer.Exit


def navarch(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Keeps a GPU fleet healthy."""
