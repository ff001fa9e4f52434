"""`--dry-run`: what a request about a node would do. Nothing is changed."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

import msgspec

from schemas.dry_run import DryRun
from schemas.duration import format_duration
from schemas.messages import encode
from schemas.operator_requests import Request
from schemas.step_declarations import waits_for
from services.cli import console
from services.cli.fleet_connection import FleetAccess
from services.operator_text.safe_text import escape_line
from services.primitives.errors import AnswerError


async def dry_runs(
    fleet: FleetAccess,
    verb: str,
    requests: Sequence[tuple[str, Request]],
    output: console.Format,
) -> None:
    """Query the pool-manager about each request to a pool, and print what it would do."""
    results = [await fleet.dry_run(pool, verb, request) for pool, request in requests]
    if output.is_data:
        documents = [msgspec.Raw(encode(each)) for each in results]
        console.write_data(output, documents[0] if len(documents) == 1 else documents)
    else:
        console.write("\n\n".join(map(page, results)))


async def rehearse(fleet: FleetAccess, pool: str, verb: str, request: Request) -> DryRun:
    """Raise AnswerError where a request would be refused, as the request itself would be.

    The dry run says whose work the request would end, which belongs to its confirmation.
    """
    found = await fleet.dry_run(pool, verb, request)
    if not found.accepted:
        text = f"refused ({found.refusal}): {escape_line(found.reason)}"
        raise AnswerError(text, found.refusal or "")
    return found


def page(result: DryRun) -> str:
    """Return a dry run as text."""
    would = "would be accepted" if result.accepted else f"would be refused ({result.refusal})"
    because = f": {result.reason}" if result.reason else ""
    about = result.node or result.pool
    lines = [escape_line(f"{result.verb} {about} {would}{because}. Nothing was changed.")]
    if result.nodes is not None:
        lines.append(f"Desired size: {result.nodes}.")
    if result.note:
        lines.append(escape_line(f"Note: {result.note}."))
    if result.gates or result.desired:
        lines.append(_budget(result))
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
        lines += ["", console.table(("gate", "", "applies to", "why"), rows, painted=False)]
    if owners := owner_lines(result):
        lines += ["", *owners]
    if result.promotes:
        lines += ["", escape_line(f"The spare {result.promotes} would take its place at once.")]
    if offering := result.offering:
        words = (offering.provider, offering.region, *offering.zones, offering.instance_type)
        named = " ".join(filter(None, words))
        order = f", {result.order}" if result.order else ""
        lines += ["", escape_line(f"{result.new_node} would be launched: {named}{order}.")]
    if result.steps:
        steps = [
            (
                step.step,
                _until(step.deadline_seconds),
                waits_for(step.step, result.node, result.new_node),
            )
            for step in result.steps
        ]
        final = next((step.step for step in result.steps if step.final), "")
        lines += ["", console.table(("step", "at most", "waits for"), steps, painted=False)]
        if final:
            leaves = escape_line(result.leaves)
            lines.append(f"It can be cancelled until {final} begins; that leaves {leaves}.")
    return "\n".join(lines)


def owner_lines(*results: DryRun) -> list[str]:
    """Return whose work would end, a line for each owner; nothing where none would.

    A job that runs on several of the nodes is named once.
    """
    work: dict[str, dict[str, None]] = {}
    more = Counter[str]()
    for each in chain.from_iterable(result.owners for result in results):
        work.setdefault(each.owner, {}).update(dict.fromkeys(each.work))
        more[each.owner] += each.total - len(each.work)
    lines = [
        escape_line(
            f"  {owner or 'an unnamed owner'}: {', '.join(named)}"
            + (f" and {more[owner]} more" if more[owner] > 0 else "")
        )
        for owner, named in work.items()
    ]
    if lines:
        lines.insert(0, "It would end the work of:")
    unknown = dict.fromkeys(each.owners_unknown for each in results if each.owners_unknown)
    lines += [escape_line(f"Whose work it would end is unknown: {each}.") for each in unknown]
    return lines


def _budget(result: DryRun) -> str:
    rate = f" of {result.disruptions_limit}" if result.disruptions_limit >= 0 else ""
    return (
        f"Budget: {result.unavailable} of {result.desired} {result.counted} are out of service, "
        f"{result.unavailable_limit} may be; disruptions in the window: {result.disruptions}{rate}."
    )


def _until(seconds: float | None) -> str:
    return "as long as it takes" if seconds is None else format_duration(seconds)
