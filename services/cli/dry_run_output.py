"""`--dry-run`: what a request about a node would do. Nothing is changed."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from services.cli import console
from services.cli.console import Format
from services.cli.fleet_connection import with_fleet

if TYPE_CHECKING:
    from schemas.dry_run import DryRun
    from schemas.operator_requests import NodeRequest
    from services.cli.bus_client import FleetClient


def dry_run(
    verb: str, request: "NodeRequest", nats_url: str, config: Path | None, output: Format
) -> None:
    """Query the pool-manager, and print what it would do."""

    async def work(fleet: "FleetClient") -> None:
        from schemas.dry_run import DryRun, DryRunRequest  # noqa: PLC0415
        from schemas.messages import encode  # noqa: PLC0415

        query = DryRunRequest(verb=verb, node=request.node, request=msgspec.Raw(encode(request)))
        data = await fleet.query("dry-run", query)
        if output is Format.JSON:
            console.write_json(data)
        else:
            console.write(page(msgspec.json.decode(data, type=DryRun)))

    with_fleet(nats_url, config, work)


def page(result: "DryRun") -> str:
    """A dry run as text."""
    from services.cli.text import tables  # noqa: PLC0415
    from services.cli.text.saga_progress import WAITS  # noqa: PLC0415

    would = "would be accepted" if result.accepted else f"would be refused ({result.refusal})"
    because = f": {result.reason}" if result.reason else ""
    lines = [f"{result.verb} {result.node} {would}{because}. Nothing was changed."]
    rate = f" of {result.disruptions_limit}" if result.disruptions_limit >= 0 else ""
    lines.append(
        f"Budget: {result.unavailable} of {result.desired} nodes are out of service, "
        f"{result.unavailable_limit} may be; disruptions in the window: {result.disruptions}{rate}."
    )
    rows = [
        (
            gate.name,
            "passes" if gate.passed else "blocks",
            "automation" if gate.automation_only else "automation and operators",
            "" if gate.passed else gate.detail,
        )
        for gate in result.gates
    ]
    if rows:
        lines += ["", tables.columns(("gate", "", "applies to", "why"), rows, colour=False)]
    if result.promotes:
        lines += ["", f"The spare {result.promotes} would take its place at once."]
    if result.offering:
        place = [result.offering["provider"], result.offering["region"], *result.offering["zones"]]
        named = " ".join(each for each in [*place, result.offering["instance_type"]] if each)
        order = f", {result.order}" if result.order else ""
        lines += ["", f"{result.new_node} would be launched: {named}{order}."]
    if result.steps:
        checked = result.new_node or result.node
        names = {"node": result.node, "new_node": result.new_node, "checked": checked}
        steps = [
            (
                step.step,
                _until(step.deadline_seconds),
                WAITS.get(step.step, "{node}").format(step=step.step, **names),
            )
            for step in result.steps
        ]
        final = next((step.step for step in result.steps if step.final), "")
        lines += ["", tables.columns(("step", "at most", "waits for"), steps, colour=False)]
        if final:
            lines.append(f"It can be cancelled until {final} begins; that leaves {result.leaves}.")
    return "\n".join(lines)


def _until(seconds: float | None) -> str:
    from schemas.duration import format_duration  # noqa: PLC0415

    return "as long as it takes" if seconds is None else format_duration(seconds)
