"""`navarch policy`: check a health policy, explain its verdict on a fault, test it on past faults.

The verdicts come from the health-monitor's own code. Only `test` needs a fleet, and only reads.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import msgspec
import typer

from schemas.enums import FaultKind
from schemas.node_events import Metric
from services.cli import console
from services.cli.command_options import Config, Output, Pool, start_time
from services.cli.fleet_connection import FleetAccess, everyday_command

if TYPE_CHECKING:
    from services.health_monitor.rules.health_policy import Policy
    from services.health_monitor.rules.policy_explanation import Explanation
    from services.health_monitor.rules.policy_replay import Difference

WARM_UP_SECONDS: Final = 7 * 86_400.0
"""A replay begins so long before its span, as no window of a policy is longer."""
DIFFERENCES_SHOWN_MAX: Final = 200
KINDS: Final = get_args(FaultKind)

commands = typer.Typer(
    help="Check a health policy, explain it, test it on past faults.", no_args_is_help=True
)

File = Annotated[Path, typer.Argument(help="The policy file.", show_default=False)]
Other = Annotated[
    Path | None,
    typer.Option("--policy", help="A policy file; default: the configured one, or Navarch's own."),
]


class PolicySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Summarizes a policy that has no errors."""

    file: str
    name: str
    hash: str
    rules: int


@commands.command("check")
def check(file: File, output: Output = console.Format.TABLE) -> None:
    """Read a policy as the health-monitor would.

    An error names file, line, key and remedy.
    """
    policy = _load(file)
    found = PolicySummary(
        file=str(file), name=policy.name, hash=policy.hash, rules=len(policy.rules)
    )
    if output.is_data:
        console.write_data(output, found)
    else:
        console.write(
            f"{file}: policy {found.name!r}, {found.rules} rules, hash {found.hash}: good"
        )


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Holds NVIDIA's documentation of a code."""

    name: str
    description: str
    action: str = ""
    """The action that NVIDIA documents; empty if there is none."""


@commands.command("explain")
def explain(
    *,
    xid: Annotated[int | None, typer.Option("--xid", min=0, help="An XID.")] = None,
    sxid: Annotated[int | None, typer.Option("--sxid", min=0, help="An SXID.")] = None,
    kind: Annotated[str, typer.Option("--kind", help=f"Another kind: {', '.join(KINDS)}.")] = "",
    condition: Annotated[
        str, typer.Option("--condition", help="A condition by its name: pcie-width.")
    ] = "",
    subcode: Annotated[str, typer.Option("--subcode", help="Where the code has one.")] = "",
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", help="A reading of the fault: temperature=96; repeatable."),
    ] = None,
    policy: Other = None,
    config: Config = None,
    output: Output = console.Format.TABLE,
) -> None:
    """Explain a policy's verdict on a fault, or a condition."""
    from services.cli.text import condition_declaration as conditions  # noqa: PLC0415
    from services.health_monitor.rules import policy_explanation  # noqa: PLC0415

    named = [each for each in (xid, sxid, kind or None, condition or None) if each is not None]
    if len(named) != 1:
        raise typer.BadParameter("name one fault: --xid, --sxid, --kind or --condition")
    row = conditions.declared(condition) if condition else None
    if kind and kind not in KINDS:
        raise typer.BadParameter(f"{kind!r} is no kind of fault; known: {', '.join(KINDS)}")
    of_kind: FaultKind = "xid" if xid is not None else "sxid" if sxid is not None else kind  # type: ignore[assignment]
    code = xid if xid is not None else sxid if sxid is not None else 0
    if row is not None:
        of_kind, code = row.kind, row.code
    index = -1 if of_kind == "sxid" or (row is not None and row.scope == "host") else 0
    name = f"{of_kind.upper()} {code}" if code or of_kind == "xid" else of_kind.replace("_", " ")
    judge = _load(policy or _configured(config))
    reported = _subcode(subcode, name, policy_explanation.known_subcodes(judge, of_kind, code))
    example = policy_explanation.example(of_kind, code, gpu_index=index, subcode=reported)
    fault = msgspec.structs.replace(example, metrics=dict(map(_metric, metric or [])))
    fault = conditions.begin_of(row, fault) if row is not None else fault
    explanation = policy_explanation.explain(judge, fault)
    known = _catalogue_entry(of_kind, code)
    found = conditions.declaration(row) if row is not None else None
    if output.is_data:
        document: dict[str, Any] = {"fault": name, "verdict": explanation.result}
        document |= msgspec.to_builtins(explanation)
        document["catalog"] = msgspec.to_builtins(known)
        document |= {"declared": msgspec.to_builtins(found)} if found else {}
        console.write_data(output, document)
    else:
        lines = conditions.declaration_lines(found) if found else []
        console.write(_explanation_text(name, explanation, known, lines))


def _subcode(written: str, fault: str, known: tuple[str, ...] | None) -> str:
    """Give a subcode as the agent reports it: `Non-fatal` in a line is `nonfatal`."""
    if known is None or not written:
        return written
    for each in known:
        if _letters(each) == _letters(written):
            return each
    raise typer.BadParameter(
        f"{written!r} is no subcode of {fault}; known: {', '.join(known) or 'none'}"
    )


def _letters(text: str) -> str:
    return "".join(each for each in text.casefold() if each.isalnum())


def _metric(written: str) -> tuple[str, Metric]:
    name, equals, text = written.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{written!r} is no metric; write name=value")
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return name, text
    return name, value if isinstance(value, int | float | str | bool) else text


def _catalogue_entry(kind: str, code: int) -> CatalogueEntry | None:
    from services.settings.xid_catalogues import load_sxids, load_xids  # noqa: PLC0415

    if kind == "xid":
        for each in load_xids().codes:
            if each.code == code:
                return CatalogueEntry(
                    name=each.mnemonic, description=each.description, action=each.action
                )
    if kind == "sxid":
        for entry in load_sxids().codes:
            if entry.code == code:
                return CatalogueEntry(name=entry.name, description=entry.description)
    return None


def _explanation_text(
    name: str,
    found: "Explanation",
    known: CatalogueEntry | None,
    declared: Sequence[tuple[str, str]],
) -> str:
    lines = [
        *declared,
        ("fault", name + (f": {known.description}" if known else "")),
        ("NVIDIA", known.action if known else ""),
        ("verdict", found.result + (", at once" if found.fatal else "")),
        ("counts", f"once it has held for {found.delay}" if found.delay else ""),
        ("action", found.action),
        ("rule", found.rule + (f": {found.description}" if found.description else "")),
        ("why", found.why),
        ("lasts", found.lasts),
        ("in a job", found.job),
        *(
            (
                "repeated",
                f"{each.count} within {each.window} per {each.per}: {each.result}, "
                f"{each.action} (rule {each.rule}). {each.why}".rstrip(),
            )
            for each in found.repeats
        ),
        ("policy", f"{found.file} ({found.policy})"),
    ]
    return "\n".join(f"{label:<10}{text}" for label, text in lines if text)


@commands.command("test")
@everyday_command
async def replay_faults(
    fleet: FleetAccess,
    file: File,
    since: Annotated[
        str, typer.Option("--since", help="From this time: 7d, 12h, 2026-11-21T01:35:00Z.")
    ] = "7d",
    pool: Pool = "",
    output: Output = console.Format.TABLE,
) -> None:
    """Replay the stored faults under a policy.

    It prints where its verdicts differ from those that were made.
    """
    policy = _load(file)
    start = start_time(since) or datetime.fromtimestamp(0, UTC)
    found, faults = await _replay(fleet, policy, start, pool)
    if output.is_data:
        more, fewer = _nodes(found)
        console.write_data(
            output,
            {
                "file": str(file),
                "policy": policy.hash,
                "since": start,
                "faults": faults,
                "nodes_more": more,
                "nodes_fewer": fewer,
                "differences": found,
            },
        )
        return
    console.write(_differences_text(found, faults, since, output))


async def _replay(
    fleet: FleetAccess, policy: "Policy", start: datetime, pool: str
) -> "tuple[list[Difference], int]":
    """Replay the stored faults; compare the verdicts from `start` on."""
    from schemas.node_events import NodeEvent, Verdict  # noqa: PLC0415
    from schemas.settings import HealthSpec  # noqa: PLC0415
    from schemas.stored_messages import decode_stored  # noqa: PLC0415
    from services.health_monitor.rules.policy_replay import Fact, Replay, differences  # noqa: PLC0415

    health = await fleet.health_settings()
    replay = Replay(policy, lambda name: health.get(name, HealthSpec()))
    decided: list[Verdict] = []
    compared: list[str] = []
    before = 0
    last: datetime | None = None
    async for batch in fleet.health_events(start - timedelta(seconds=WARM_UP_SECONDS)):
        for stored in batch:
            event = decode_stored(stored)
            if not isinstance(event, NodeEvent) or pool not in ("", event.pool):
                continue
            last = stored.time
            if isinstance(event, Verdict):
                decided.append(event)
                continue
            replay.take(Fact(event, stored.sequence, stored.time))
            if stored.time < start:
                before = replay.faults
            else:
                compared.append(event.id)
    if last is not None:
        replay.finish(last)
    return differences(decided, replay.verdicts, compared), replay.faults - before


def _nodes(found: "list[Difference]") -> tuple[list[str], list[str]]:
    """The nodes that only this policy makes unhealthy, and those that it does not."""
    more = {each.node for each in found if each.would == "unhealthy" != each.decided}
    fewer = {each.node for each in found if each.decided == "unhealthy" != each.would}
    # A node that is unhealthy under both because of different faults is in neither.
    return sorted(more - fewer), sorted(fewer - more)


def _differences_text(
    found: "list[Difference]",
    faults: int,
    since: str,
    output: console.Format = console.Format.TABLE,
) -> str:
    more, fewer = _nodes(found)
    span = f"over {faults} faults since {since}"
    if not found:
        return f"No difference {span}."
    rows = [
        (
            f"{each.pool}/{each.node}",
            each.time.strftime("%Y-%m-%d %H:%M:%S"),
            _status(each.decided, each.decided_action, each.decided_rule),
            _status(each.would, each.would_action, each.would_rule),
            each.reason,
        )
        for each in found[:DIFFERENCES_SHOWN_MAX]
    ]
    headers = ("node", "time", "decided", "would", "reason")
    table = console.table(headers, rows, output)
    rest = len(found) - len(rows)
    left = f"\n… and {rest} more; -o json shows all" if rest else ""
    counts = f"{len(more)} nodes more and {len(fewer)} fewer would have become unhealthy"
    return f"{table}{left}\n\n{len(found)} differences {span}: {counts}."


def _status(status: str | None, action: str, rule: str) -> str:
    if status is None:
        return "-"
    return f"{status}, {action} ({rule})" if rule else status


def _load(file: Path) -> "Policy":
    from services.health_monitor.rules.policy_file import load_policy  # noqa: PLC0415

    return load_policy(file)


def _configured(config: Path | None) -> Path:
    """The policy file of this configuration's health-monitor."""
    from services.cli.fleet_discovery import settings_of  # noqa: PLC0415
    from services.health_monitor.rules.policy_file import policy_path  # noqa: PLC0415

    return policy_path(settings_of(config).health_policy, config)
