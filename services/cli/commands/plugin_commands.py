"""`navarch plugins new|list|disable|enable`: the plugins of a fleet, and how they do."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from schemas.plugin_kinds import KINDS
from schemas.plugin_records import PluginHealth
from services.cli import console
from services.cli.command_options import ListOutput, command_group
from services.cli.fleet_connection import bus_of, fleet_command
from services.fleet_client.fleet_client import FleetClient
from services.fleet_client.plugin_calls import plugin_records, switch_plugin
from services.primitives.errors import NavarchError

commands = command_group("The plugins that the services use, and how they do.")
HEADERS = (
    *("name", "kind", "used for", "package", "service", "state"),
    *("calls", "failures", "slowest", "last error"),
)
Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
ERROR_CHARS_MAX = 60


@commands.command("new")
def new(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="provider, scheduler, notifier, authenticator, alert-channel, autoscaler, "
            "metrics-source, remediator or health-check.",
            show_default=False,
        ),
    ],
    name: Name,
    directory: Annotated[
        Path | None,
        typer.Option("--directory", help="A new directory; default: navarch-NAME."),
    ] = None,
) -> None:
    """Write the package of a new plugin.

    With a plugin that works, and a test that runs the conformance suite of its kind.
    """
    from services.cli import plugin_package  # noqa: PLC0415 - keeps the other commands quick
    from services.cli.plugin_options import taken_names  # noqa: PLC0415

    wanted = plugin_package.kind_named(kind)
    plugin_package.check_name(name, wanted, taken_names(wanted.group))
    place = directory or Path(f"navarch-{name}")
    plugin_package.write_package(plugin_package.package_files(wanted, name), place)
    console.write(f"{place}: the {wanted.name} {name}; test it there by `pytest`, see README.md")


@commands.command("list")
@fleet_command
async def list_plugins(
    fleet: FleetClient,
    output: ListOutput = console.LISTING,
    every: Annotated[bool, typer.Option("--all", help="Navarch's own as well.")] = False,
) -> None:
    """List the plugins from outside, and those that fail.

    With the package of each, what its calls took, and its last error with file and line.
    An agent's health checks are in the agent's log, and in the answer of `navarch diagnose`.
    """
    found = await plugin_records(bus_of(fleet, "this command"))
    shown = [each for each in found if every or each.package or each.state != "works"]
    if output.is_data:
        console.write_data(output, msgspec.json.encode(shown))
        return
    order = [each.name for each in KINDS]
    shown.sort(key=lambda each: (order.index(each.kind), each.name, each.about))
    rows = [plugin_row(each) for each in shown]
    console.write_table(HEADERS, rows, "No plugin from outside is in use.", output)
    if output.is_bare:
        return
    for reason in dict.fromkeys(each.reason for each in shown if each.reason):
        console.write(f"{reason[:1].upper()}{reason[1:]}.")


def plugin_row(health: PluginHealth) -> tuple[str, ...]:
    """Return the line of a plugin in the table."""
    return (
        health.name,
        health.kind,
        health.about or "-",
        f"{health.package} {health.version}".strip() or "navarch",
        health.service or "-",
        health.state,
        str(health.calls),
        str(health.failures),
        f"{health.slowest_seconds:.3g} s",
        health.last_error[:ERROR_CHARS_MAX] or "-",
    )


@commands.command("disable")
@fleet_command
async def disable(fleet: FleetClient, name: Name) -> None:
    """Take the plugins of a name out until they are enabled.

    What happens instead is in docs/plugins.md: a pool keeps its size, nodes are left to operators.
    """
    await _switch(fleet, name, disabled=True)


@commands.command("enable")
@fleet_command
async def enable(fleet: FleetClient, name: Name) -> None:
    """Begin with the plugins of a name again.

    With disabled ones, and with those that are off.
    """
    await _switch(fleet, name, disabled=False)


async def _switch(fleet: FleetClient, name: str, *, disabled: bool) -> None:
    known = {each.name for each in await plugin_records(fleet)}
    if known and name not in known:
        raise NavarchError(f"no plugin {name!r} (known: {', '.join(sorted(known))})")
    record = await switch_plugin(fleet, name, disabled=disabled)
    console.write(f"{name}: {'disabled' if disabled else 'enabled'} by {record.by}")
