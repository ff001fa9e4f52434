"""Formats the fleet's answers as text. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from schemas.duration import format_duration
from schemas.fleet_queries import CurrentFailure, GpuView, NodeView, PoolView
from services.cli.text.styles import BOLD, COLOURS, DIM, RESET
from services.cli.text.table_layout import columns
from services.fleet_client.fleet_status import SAGAS_ASKED_MAX
from services.fleet_client.node_timeline import TimelineRow
from services.operator_text.advice_text import advice_sentence, is_notable
from services.operator_text.condition_text import condition_line
from services.operator_text.event_text import EventDescription
from services.operator_text.quantities import age_since_text, local_time_text, localized
from services.operator_text.safe_text import escape_line


def node_rows(nodes: Iterable[NodeView], now: datetime) -> list[tuple[str, ...]]:
    """One row per node; the last column has remarks."""
    return [
        (
            node.id,
            node.pool,
            node.status,
            node.health,
            str(node.gpu_count or "-"),
            node.provider or "-",
            node.instance_type or "-",
            age_since_text(node.registered_at, now),
            _remarks(node) or "-",
        )
        for node in nodes
    ]


NODE_HEADERS: Final = (
    "node",
    "pool",
    "status",
    "health",
    "gpus",
    "provider",
    "instance type",
    "age",
    "remarks",
)


def wide_node_rows(nodes: Sequence[NodeView], now: datetime) -> list[tuple[str, ...]]:
    """The same with where each node is and since when, before the remarks."""
    return [
        (
            *row[:-1],
            *(each or "-" for each in (node.region, node.zone, node.rack, node.address)),
            *(local_time_text(each) or "-" for each in (node.registered_at, node.last_change)),
            row[-1],
        )
        for node, row in zip(nodes, node_rows(nodes, now), strict=True)
    ]


WIDE_NODE_HEADERS: Final = (
    *NODE_HEADERS[:-1],
    *("region", "zone", "rack", "address", "registered", "last change"),
    NODE_HEADERS[-1],
)


def _remarks(node: NodeView) -> str:
    words = [word for word in ("spare", "cordoned", "drained", "lost") if getattr(node, word)]
    if node.spare or node.quarantined:
        words.remove("cordoned")
    if node.quarantined:
        words.append("quarantined")
    words += ["drain expired"] if node.drain_expired else []
    words += [f"GPU {index} cordoned" for index in node.cordoned_gpus]
    if node.saga:
        words.append(f"saga {node.saga}")
    if node.held_until:
        by = f" by {node.held_by}" if node.held_by else ""
        words.append(f"held until {node.held_until}{by}: {node.held_reason}")
    if node.status == "active" and not node.registered_at:
        words.append("its agent has not joined")
    if node.workload:
        words.append(node.workload)
    if node.renewal and not node.saga:
        words.append(node.renewal)
    if node.reason and (node.health != "healthy" or node.status != "active"):
        words.append(node.reason)
    return ", ".join(words)


POOL_HEADERS: Final = (
    "pool",
    "desired",
    "nodes",
    "active",
    "healthy",
    "unhealthy",
    "cordoned",
    "min",
    "max",
    "breaker",
    "out of service",
    "disruptions",
    "open sagas",
)


def pool_rows(pools: Iterable[PoolView]) -> list[tuple[str, ...]]:
    """Return a table with one row per pool."""
    return [
        (
            _name_and_mode(pool),
            *map(str, (pool.desired, pool.nodes, pool.active, pool.healthy, pool.unhealthy)),
            *map(str, (pool.cordoned, pool.min_nodes, pool.max_nodes)),
            pool.breaker,
            usage_text(pool.unavailable, pool.unavailable_limit),
            rate_text(pool.disruptions, pool.disruptions_limit, pool.window_seconds),
            str(len(pool.open_sagas)) if pool.open_sagas else "-",
        )
        for pool in pools
    ]


def advice_lines(pools: Iterable[PoolView]) -> list[str]:
    """Autoscalers' advice that is not followed, one line each."""
    return [
        escape_line(f"{pool.name}: {localized(advice_sentence(pool.advice))}")
        for pool in pools
        if pool.advice is not None and is_notable(pool.advice)
    ]


def renewal_lines(pools: Iterable[PoolView]) -> list[str]:
    """Return how many healthy nodes differ from their pool's settings, or wait for replacement."""
    found = []
    for pool in pools:
        words = [f"{pool.drifted} drifted"] if pool.drifted else []
        words += [f"{pool.to_renew} to be replaced at leisure"] if pool.to_renew else []
        if words:
            which = "navarch list says which and why"
            found.append(escape_line(f"{pool.name}: healthy nodes: {', '.join(words)}; {which}"))
    return found


def warnings(pools: Iterable[PoolView]) -> list[str]:
    """Return what the pools' configuration risks, one line each."""
    return [
        escape_line(f"WARNING: {pool.name}: {text}") for pool in pools for text in pool.warnings
    ]


def failure_line(failure: CurrentFailure) -> str:
    """Return what fails in a service, and what to do."""
    return escape_line(f"warning: {failure.about}: {failure.reason}; {failure.remedy}")


def expiry_line(expiries: Iterable[tuple[str, datetime]]) -> str:
    """Return when the certificates and credentials of this connection expire."""
    return escape_line(
        "Valid until: " + ", ".join(f"{what} {at:%Y-%m-%d}" for what, at in expiries)
    )


def _name_and_mode(pool: PoolView) -> str:
    """The pool's name, with its mode if that is exceptional."""
    if pool.removing:
        return f"{pool.name} (removing)"
    return f"{pool.name} (observe)" if pool.mode == "observe" else pool.name


def usage_text(count: int, limit: int) -> str:
    """Return how much of a budget is used: `1 of 2`."""
    return f"{count} of {limit}" if limit >= 0 else str(count)


def rate_text(count: int, limit: int, window_seconds: float) -> str:
    """Return how much of a rate is used: `3 of 5 in 1h`."""
    return (
        f"{usage_text(count, limit)} in {format_duration(window_seconds)}"
        if window_seconds
        else "-"
    )


def generic_table(items: Sequence[dict[str, Any]], *, colour: bool, width: int = 0) -> str:
    """A table of the keys that the items share, without nested values."""
    headers = [
        key
        for key in (items[0] if items else {})
        if not any(isinstance(item.get(key), dict | list) for item in items)
        and any(item.get(key) not in ("", None) for item in items)
    ]
    rows = [[_cell(item.get(key)) for key in headers] for item in items]
    return columns(headers, rows, colour=colour, width=width)


SAGA_COLUMNS: Final = ("id", "saga", "pool", "kind", "node", "new_node", "step", "age", "reason")
SAGAS_SHOWN_MAX: Final = SAGAS_ASKED_MAX


def open_sagas_text(
    sagas: Sequence[dict[str, Any]], now: datetime, *, colour: bool, width: int = 0
) -> str:
    """Return the open sagas in short."""
    aged = (
        {**saga, "age": age_since_text(str(saga.get("since")), now)}
        for saga in sagas[:SAGAS_SHOWN_MAX]
    )
    shown: list[dict[str, Any]] = [
        {key: saga[key] for key in SAGA_COLUMNS if key in saga} for saga in aged
    ]
    more = f", {len(sagas) - SAGAS_SHOWN_MAX} more" if len(sagas) > SAGAS_SHOWN_MAX else ""
    waiting = f"Details{more}: navarch saga list"
    return f"Open sagas:\n{generic_table(shown, colour=colour, width=width)}\n{waiting}"


def _cell(value: Any) -> str:
    return "-" if value in ("", None) else str(value)


def node_page(node: NodeView, now: datetime, *, colour: bool, width: int = 0) -> str:
    """Return all facts about one node."""
    facts = [
        ("node", node.id),
        ("pool", node.pool),
        ("status", node.status),
        ("health", node.health),
        ("remarks", _remarks(node)),
        ("gpus", str(node.gpu_count)),
        ("provider", node.provider),
        ("instance type", node.instance_type),
        ("location", "/".join(part for part in (node.region, node.zone) if part)),
        ("rack", node.rack),
        ("identity", _identity_remark(node)),
        ("nvlink domain", node.nvlink_domain if node.nvlink_domain != node.rack else ""),
        ("job", node.job),
        ("hostname", node.hostname),
        ("address", node.address),
        ("labels", ", ".join(f"{key}={each}" for key, each in sorted(node.labels.items()))),
        ("registered", local_time_text(node.registered_at)),
        ("last change", local_time_text(node.last_change)),
        ("last heartbeat", local_time_text(node.last_heartbeat)),
    ]
    parts = ["\n".join(f"{key:<14} {escape_line(value)}" for key, value in facts if value)]
    if node.gpus:
        gpus = [_identity(gpu) for gpu in node.gpus]
        parts.append(generic_table(gpus, colour=colour, width=width))
        parts += _unhealthy_gpus(node, now, colour=colour, width=width)
    if node.conditions:
        held = (condition_line(each, silent=node.lost) for each in node.conditions)
        parts.append("\n".join(["CONDITIONS", *held]))
    if node.health_events:
        rows = [
            (
                local_time_text(each.time),
                f"{each.kind} {each.code}" if each.code else each.kind,
                str(each.gpu_index) if each.gpu_index >= 0 else "-",
                each.result or "-",
                each.rule or "-",
                each.message,
            )
            for each in node.health_events
        ]
        headers = ("time", "fault", "gpu", "result", "rule", "message")
        parts.append(columns(headers, rows, colour=colour, width=width))
    return "\n\n".join(parts)


def _identity_remark(node: NodeView) -> str:
    if not node.identity_claim:
        return ""
    return f"its agent reports {node.identity_difference} (navarch identity accept {node.id})"


def _identity(gpu: GpuView) -> dict[str, Any]:
    """A GPU's identity and health, without the reason."""
    shown = {key: getattr(gpu, key) for key in ("index", "uuid", "serial", "pci", "name", "health")}
    return shown | ({"cordoned": "cordoned"} if gpu.cordoned else {})


def _moment(text: str) -> str:
    """A time in milliseconds."""
    head, dot, _ = text.partition(".")
    return f"{head}{dot}{text[len(head) + 1 :].rstrip('Z')[:3]}Z" if dot else text or "-"


def _unhealthy_gpus(node: NodeView, now: datetime, *, colour: bool, width: int) -> list[str]:
    """A table of the conditions of each degraded or unhealthy GPU, if there are any."""
    rows = [
        (
            *(str(gpu.index), gpu.health, gpu.action or "-", gpu.rule or "-"),
            *(age_since_text(gpu.since, now), _moment(gpu.since), gpu.reason or "-"),
        )
        for gpu in node.gpus
        if gpu.health in ("degraded", "unhealthy")
    ]
    headers = ("gpu", "health", "action", "rule", "age", "since", "reason")
    return [columns(headers, rows, colour=colour, width=width)] if rows else []


def event_line(at: datetime, text: EventDescription, *, colour: bool) -> str:
    """Return one line of `navarch events`."""
    clock, title = _clock(at), f"{text.title:<18}"
    if colour:
        clock, title = f"{DIM}{clock}{RESET}", f"{COLOURS[text.tone]}{title}{RESET}"
    return f"{clock}  {text.subject:<28}  {title}  {text.summary}".rstrip()


def timeline(rows: Sequence[TimelineRow], *, colour: bool) -> str:
    """A node's timeline: time, milliseconds since the start and since the row before."""
    width = max([len("event"), *(len(each.title) for each in rows)])
    subject = max([len("subject"), *(len(each.subject) for each in rows)])
    head = f"{'AT':<12}  {'SINCE MS':>12}  {'STEP MS':>10}  {'SUBJECT':<{subject}}  EVENT"
    lines = [f"{BOLD}{head}{RESET}" if colour else head]
    for each in rows:
        title = f"{each.title:<{width}}"
        if colour:
            title = f"{COLOURS[each.tone]}{title}{RESET}"
        numbers = f"{each.since_ms:>12.1f}  {each.step_ms:>+10.1f}"
        detail = escape_line(each.detail)
        line = f"{_clock(each.at)}  {numbers}  {each.subject:<{subject}}  {title}  {detail}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def _clock(at: datetime) -> str:
    return at.astimezone().time().isoformat("milliseconds")
