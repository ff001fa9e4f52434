"""`navarch policy`: check a health policy, explain what it makes of a fault, try it on the past.

Judges with the health-monitor's own code, so that what is said here is what happens there. Only
`test` needs a bus, and only reads.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import msgspec
import typer

from schemas.enums import FaultKind
from schemas.node_events import Metric
from services.cli import console
from services.cli.command_options import Config, NatsUrl, Output, start_time
from services.cli.console import Format

if TYPE_CHECKING:
    from services.bus.port import Bus, Stored
    from services.health_monitor.rules.health_policy import Policy
    from services.health_monitor.rules.policy_explanation import Explanation
    from services.health_monitor.rules.policy_replay import Difference

WARM_UP_SECONDS: Final = 7 * 86_400.0
"""A replay begins so long before the span that is asked about: no window of a policy is longer, so
that a node's past counts as it did then."""
DIFFERENCES_SHOWN_MAX: Final = 200
KINDS: Final = get_args(FaultKind)

commands = typer.Typer(
    help="Check a health policy, explain it, try it on the past.", no_args_is_help=True
)

File = Annotated[Path, typer.Argument(help="The policy file.", show_default=False)]
Other = Annotated[
    Path | None,
    typer.Option("--policy", help="A policy file; default: the configured one, or Navarch's own."),
]


# --- check ---------------------------------------------------------------------------------------


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A policy without errors."""

    file: str
    name: str
    hash: str
    rules: int


@commands.command("check")
def check(file: File, output: Output = Format.TABLE) -> None:
    """Read a policy as the health-monitor would.

    An error names file, line, key and remedy.
    """
    policy = _load(file)
    found = Checked(file=str(file), name=policy.name, hash=policy.hash, rules=len(policy.rules))
    if output is Format.JSON:
        console.write_json(found)
    else:
        console.write(
            f"{file}: policy {found.name!r}, {found.rules} rules, hash {found.hash}: good"
        )


# --- explain -------------------------------------------------------------------------------------


class Catalogued(msgspec.Struct, frozen=True, kw_only=True):
    """What NVIDIA says of a code."""

    name: str
    description: str
    action: str = ""
    """NVIDIA's own word; empty where it says nothing."""


@commands.command("explain")
def explain(
    *,
    xid: Annotated[int | None, typer.Option("--xid", min=0, help="An XID.")] = None,
    sxid: Annotated[int | None, typer.Option("--sxid", min=0, help="An SXID.")] = None,
    kind: Annotated[str, typer.Option("--kind", help=f"Another kind: {', '.join(KINDS)}.")] = "",
    subcode: Annotated[str, typer.Option("--subcode", help="Where the code has one.")] = "",
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", help="What the fault measures, e.g. temperature=96; repeatable."),
    ] = None,
    policy: Other = None,
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Say what a policy makes of a fault, and why."""
    from services.health_monitor.rules import policy_explanation as explaining  # noqa: PLC0415

    asked = [each for each in (xid, sxid, kind or None) if each is not None]
    if len(asked) != 1:
        raise typer.BadParameter("name one fault: --xid, --sxid or --kind")
    if kind and kind not in KINDS:
        raise typer.BadParameter(f"{kind!r} is no kind of fault; known: {', '.join(KINDS)}")
    word: FaultKind = "xid" if xid is not None else "sxid" if sxid is not None else kind  # type: ignore[assignment]
    code = xid if xid is not None else sxid if sxid is not None else 0
    made_up = explaining.example(word, code, gpu_index=-1 if word == "sxid" else 0, subcode=subcode)
    fault = msgspec.structs.replace(made_up, metrics=dict(map(_metric, metric or [])))
    told = explaining.explain(_load(policy or _configured(config)), fault)
    name = f"{word.upper()} {code}" if code or word in ("xid", "sxid") else word.replace("_", " ")
    known = _catalogued(word, code)
    if output is Format.JSON:
        document: dict[str, Any] = {"fault": name, "verdict": told.result}
        document |= msgspec.to_builtins(told)
        document["catalog"] = msgspec.to_builtins(known)
        console.write_json(document)
    else:
        console.write(_page(name, told, known))


def _metric(written: str) -> tuple[str, Metric]:
    name, equals, text = written.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{written!r} is no metric; write name=value")
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return name, text
    return name, value if isinstance(value, int | float | str | bool) else text


def _catalogued(kind: str, code: int) -> Catalogued | None:
    from services.health_monitor.rules.xid_catalogues import load_sxids, load_xids  # noqa: PLC0415

    if kind == "xid":
        for each in load_xids().codes:
            if each.code == code:
                return Catalogued(
                    name=each.mnemonic, description=each.description, action=each.action
                )
    if kind == "sxid":
        for entry in load_sxids().codes:
            if entry.code == code:
                return Catalogued(name=entry.name, description=entry.description)
    return None


def _page(name: str, told: "Explanation", known: Catalogued | None) -> str:
    lines = [
        ("fault", name + (f": {known.description}" if known else "")),
        ("NVIDIA", known.action if known else ""),
        ("verdict", told.result + (", at once" if told.fatal else "")),
        ("action", told.action),
        ("rule", told.rule + (f": {told.description}" if told.description else "")),
        ("why", told.why),
        ("lasts", told.lasts),
        ("in a job", told.job),
        *(
            (
                "repeated",
                f"{each.count} within {each.window} per {each.per}: {each.result}, "
                f"{each.action} (rule {each.rule}). {each.why}".rstrip(),
            )
            for each in told.repeats
        ),
        ("policy", f"{told.file} ({told.policy})"),
    ]
    return "\n".join(f"{label:<10}{text}" for label, text in lines if text)


# --- test ----------------------------------------------------------------------------------------


@commands.command("test")
def over_the_past(
    file: File,
    since: Annotated[
        str, typer.Option("--since", help="From when on: 7d, 12h, 2026-11-21T01:35:00Z.")
    ] = "7d",
    pool: Annotated[str, typer.Option("--pool", help="One pool only.")] = "",
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = Format.TABLE,
) -> None:
    """Run a policy over the stored faults.

    It prints what would differ from what was decided.
    """
    policy = _load(file)
    start = start_time(since) or datetime.fromtimestamp(0, UTC)

    async def work() -> "tuple[list[Difference], int]":
        from services.cli.bus_client import connected  # noqa: PLC0415
        from services.cli.fleet_discovery import find_bus  # noqa: PLC0415

        async with connected(find_bus(nats_url, config)) as fleet:
            return await _replayed(fleet.bus, policy, start, pool)

    found, faults = asyncio.run(work())
    if output is Format.JSON:
        more, fewer = _nodes(found)
        console.write_json(
            {
                "file": str(file),
                "policy": policy.hash,
                "since": start,
                "faults": faults,
                "nodes_more": more,
                "nodes_fewer": fewer,
                "differences": found,
            }
        )
        return
    console.write(_told(found, faults, since))


async def _replayed(
    bus: "Bus", policy: "Policy", start: datetime, pool: str
) -> "tuple[list[Difference], int]":
    """Replay what is stored; compare what happened from `start` on."""
    from schemas.node_events import NodeEvent, Verdict, node_codec  # noqa: PLC0415
    from services.health_monitor.rules.policy_replay import Fact, Replay, differences  # noqa: PLC0415

    after = await _unhealthy_after(bus)
    replay = Replay(policy, lambda name: after.get(name, 1))
    decided: list[Verdict] = []
    compared: list[str] = []
    before = 0
    last: datetime | None = None
    async for stored in _facts(bus, start - timedelta(seconds=WARM_UP_SECONDS)):
        event = node_codec.decode(stored.data)
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


async def _facts(bus: "Bus", start: datetime) -> "AsyncGenerator[Stored, None]":
    """Everything the health-monitor heard and said, in order, up to now."""
    from schemas import subjects  # noqa: PLC0415
    from schemas.topology import EVENTS, HEALTH_EVENTS  # noqa: PLC0415

    filters = [*HEALTH_EVENTS.filters, subjects.node_event_wildcard("verdict")]
    newest = await asyncio.gather(*(bus.last(EVENTS.name, each) for each in filters))
    ends = [each.sequence for each in newest if each is not None and each.time >= start]
    if not ends:
        return
    following = bus.follow(EVENTS.name, filters, "all", after=start)
    assert isinstance(following, AsyncGenerator)
    async with aclosing(following):
        async for stored in following:
            yield stored
            if stored.sequence >= max(ends):
                return


async def _unhealthy_after(bus: "Bus") -> dict[str, int]:
    """What each pool asks for, as it is now."""
    from schemas.messages import decoder  # noqa: PLC0415
    from schemas.pool_records import PoolRecord, pool_key  # noqa: PLC0415
    from schemas.topology import POOLS  # noqa: PLC0415

    pools = decoder(PoolRecord)
    entries = await bus.entries(POOLS, pool_key("*"))
    records: list[PoolRecord] = [pools.decode(entry.value) for entry in entries]
    return {each.name: each.spec.health.unhealthy_after for each in records}


def _nodes(found: "list[Difference]") -> tuple[list[str], list[str]]:
    """Nodes that would have been lost to this policy, and nodes that would have been kept."""
    more = {each.node for each in found if each.would == "unhealthy" != each.decided}
    fewer = {each.node for each in found if each.decided == "unhealthy" != each.would}
    # A node that became unhealthy over another message stands in both, and makes no difference.
    return sorted(more - fewer), sorted(fewer - more)


def _told(found: "list[Difference]", faults: int, since: str) -> str:
    more, fewer = _nodes(found)
    span = f"over {faults} faults since {since}"
    if not found:
        return f"No difference {span}."
    from services.cli.text import tables  # noqa: PLC0415

    rows = [
        (
            each.time.strftime("%Y-%m-%d %H:%M:%S"),
            f"{each.pool}/{each.node}",
            _status(each.decided, each.decided_action, each.decided_rule),
            _status(each.would, each.would_action, each.would_rule),
            each.reason,
        )
        for each in found[:DIFFERENCES_SHOWN_MAX]
    ]
    headers = ("time", "node", "decided", "would", "reason")
    table = tables.columns(headers, rows, colour=console.colour())
    rest = len(found) - len(rows)
    left = f"\n… and {rest} more; -o json shows all" if rest else ""
    counts = f"{len(more)} nodes more and {len(fewer)} fewer would have become unhealthy"
    return f"{table}{left}\n\n{len(found)} differences {span}: {counts}."


def _status(status: str | None, action: str, rule: str) -> str:
    if status is None:
        return "-"
    return f"{status}, {action} ({rule})" if rule else status


# --- which policy --------------------------------------------------------------------------------


def _load(file: Path) -> "Policy":
    from services.health_monitor.rules.policy_file import load_policy  # noqa: PLC0415

    return load_policy(file)


def _configured(config: Path | None) -> Path:
    """The policy that the health-monitor of this configuration judges by."""
    from services.cli.fleet_discovery import settings_of  # noqa: PLC0415
    from services.health_monitor.rules.policy_file import policy_path  # noqa: PLC0415

    return policy_path(settings_of(config).health_policy, config)
