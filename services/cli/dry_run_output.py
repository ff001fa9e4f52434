"""`--dry-run`: what a request about a node would come to. Nothing is touched."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from services.cli import console
from services.cli.console import Format

if TYPE_CHECKING:
    from schemas.dry_run import DryRun
    from schemas.operator_requests import NodeRequest


def dry_run(
    verb: str, request: "NodeRequest", nats_url: str, config: Path | None, output: Format
) -> None:
    """Ask the pool-manager, and print what it would do."""

    async def work() -> None:
        from schemas.dry_run import DryRun, DryRunRequest  # noqa: PLC0415
        from schemas.messages import encode  # noqa: PLC0415
        from services.cli.bus_client import connected  # noqa: PLC0415
        from services.cli.fleet_discovery import find_bus  # noqa: PLC0415

        asked = DryRunRequest(verb=verb, node=request.node, request=msgspec.Raw(encode(request)))
        async with connected(find_bus(nats_url, config)) as fleet:
            data = await fleet.ask("dry-run", asked)
        if output is Format.JSON:
            console.write_json(data)
        else:
            console.write(page(msgspec.json.decode(data, type=DryRun)))

    asyncio.run(work())


def page(told: "DryRun") -> str:
    """A dry run as people read it."""
    from services.cli.text import tables  # noqa: PLC0415
    from services.cli.text.saga_progress import WAITS  # noqa: PLC0415

    would = "would be accepted" if told.accepted else f"would be refused ({told.refusal})"
    because = f": {told.reason}" if told.reason else ""
    lines = [f"{told.verb} {told.node} {would}{because}. Nothing was done."]
    rate = f" of {told.disruptions_limit}" if told.disruptions_limit >= 0 else ""
    lines.append(
        f"Budget: {told.unavailable} of {told.desired} nodes are out of service, "
        f"{told.unavailable_limit} may be; {told.disruptions}{rate} were begun in the window."
    )
    rows = [
        (
            gate.name,
            "passes" if gate.passed else "stops",
            "what begins by itself" if gate.automation_only else "everybody",
            "" if gate.passed else gate.detail,
        )
        for gate in told.gates
    ]
    if rows:
        lines += ["", tables.columns(("gate", "", "stops", "why"), rows, colour=False)]
    if told.promotes:
        lines += ["", f"The spare {told.promotes} would take its place at once."]
    if told.offering:
        place = [told.offering["provider"], told.offering["region"], *told.offering["zones"]]
        named = " ".join(each for each in [*place, told.offering["instance_type"]] if each)
        order = f", {told.order}" if told.order else ""
        lines += ["", f"{told.new_node} would be launched: {named}{order}."]
    if told.steps:
        checked = told.new_node or told.node
        names = {"node": told.node, "new_node": told.new_node, "checked": checked}
        steps = [
            (
                step.step,
                _until(step.deadline_seconds),
                WAITS.get(step.step, "{node}").format(step=step.step, **names),
            )
            for step in told.steps
        ]
        final = next((step.step for step in told.steps if step.final), "")
        lines += ["", tables.columns(("step", "at most", "waits for"), steps, colour=False)]
        if final:
            lines.append(f"It can be cancelled until {final} begins; that leaves {told.leaves}.")
    return "\n".join(lines)


def _until(seconds: float | None) -> str:
    from schemas.duration import format_duration  # noqa: PLC0415

    return "as long as it takes" if seconds is None else format_duration(seconds)
