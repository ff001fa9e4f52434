"""The commands of `navarch`, each in a module that is imported where it is wanted.

A command waits for its imports: most of its time. So one command is made without the others, and
all of them only for `--help`, completion, and the documentation.
"""

from importlib import import_module
from typing import Annotated, Any, Final

import typer

from services.cli.command_groups import SectionedGroup
from services.primitives.module_names import installed_name

MODULES: Final = installed_name("services.cli.commands.")
GROUPS: Final = {
    "alerts": "alert_commands",
    "policy": "policy_commands",
    "config": "config_commands",
    "saga": "saga_commands",
    "pool": "pool_commands",
    "breaker": "breaker_commands",
    "hardware": "hardware_commands",
    "nats-config": "nats_config_commands",
    "gateway": "gateway_commands",
    "workload": "workload_commands",
    "slurm": "slurm_power_commands",
    "simulator": "simulator.simulator_commands",
}
"""Name of a group -> the module with its `commands`."""
COMMANDS: Final = {
    "get": "query_commands:get",
    "events": "query_commands:events",
    "timeline": "query_commands:timeline",
    "why": "query_commands:why",
    "status": "status_command:status",
    "top": "top_command:top",
    "doctor": "doctor_command:doctor",
    "diagnose": "diagnose_command:diagnose",
    "logs": "logs_command:logs",
    "version": "version_command:version",
    "list": "list_command:list_nodes",
    "instances": "instance_commands:instances",
    "leaked": "instance_commands:leaked",
    "audit": "audit_command:audit",
    "evidence": "evidence_command:evidence",
    "report": "report_command:report",
    "cost": "cost_command:cost",
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
    "hold": "hold_commands:hold",
    "release": "hold_commands:release",
    "readmit": "instance_commands:readmit",
    "scale": "scale_command:scale",
    "serve": "run_commands:serve",
    "backup": "backup_commands:backup",
    "restore": "backup_commands:restore",
    "demo": "run_commands:demo",
}
"""Name of a command -> its module and function."""
CONTEXTS: Final[dict[str, dict[str, Any]]] = {"ssh": {"ignore_unknown_options": True}}
"""How arguments are read, where it is particular."""


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
            app.add_typer(import_module(MODULES + module).commands, name=name)
    for name in one or COMMANDS:
        if place := COMMANDS.get(name):
            module, _, function = place.partition(":")
            found = getattr(import_module(MODULES + module), function)
            app.command(name, context_settings=CONTEXTS.get(name))(found)
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
