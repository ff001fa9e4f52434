"""Writes the review of an incident in Markdown, for a ticket or a page. Pure."""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final
from urllib.parse import quote

from schemas.evidence_bundles import KeptEvidence
from schemas.time_text import utc_seconds
from services.fleet_client.incident_review import IncidentReview
from services.fleet_client.node_timeline import AuditRow
from services.fleet_client.saga_summaries import SagaSummary
from services.operator_text.safe_text import escape_line

MARKUP: Final = re.compile(r"([\\`*_{}\[\]<>#|~])")
NODES_MAX: Final = 20


def plain(text: str) -> str:
    """Return text that Markdown takes for text, whatever a machine has written."""
    return MARKUP.sub(r"\\\1", escape_line(text))


def incident_page(found: IncidentReview, dashboard: str = "") -> str:
    """Return the page; `dashboard`: where its links lead, or empty."""
    about = found.about
    end = "it is still open" if about.lasts else utc_seconds(about.end)
    span = f"From {utc_seconds(about.start)} until {end}. All times are UTC."
    lines = [f"# {plain(about.title)}", "", span]
    if about.nodes:
        named = ", ".join(_node(each, dashboard) for each in about.nodes[:NODES_MAX])
        lines += ["", f"The first affected nodes: {named}."]
    for title, part in _sections(found, dashboard):
        name, _, words = title.partition(":")
        lines += ["", f"## {words}", ""]
        lines += part or ["Nothing is recorded."]
        if more := found.omitted.get(name):
            lines.append(f"- … and {more} more")
    return "\n".join(lines)


def _sections(found: IncidentReview, dashboard: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each section: its name and title, and its lines."""
    yield "seen:What was seen", _items((each.at, each.text) for each in found.seen)
    yield "decided:What was decided", _items((each.at, each.text) for each in found.decided)
    yield "done:What was done", _items((each.at, each.text) for each in found.done)
    waited = ((each.at, f"{each.gate or 'refused'}: {each.text}") for each in found.waited)
    yield "waited:What waited, and for which gate", _items(waited)
    if found.about.lasts:
        yield (
            "now:What it waits for now",
            [
                f"- {plain(f'{each.gate}: {each.text}')}{_code(each.remedy)}"
                for each in found.waits_now
            ],
        )
    yield "requested:Who requested what", _items((e.time, _request(e)) for e in found.requested)
    yield "sagas:Sagas", [_saga(each, dashboard) for each in found.sagas]
    yield "evidence:Evidence", [_evidence(each, dashboard) for each in found.evidence]


def _request(row: AuditRow) -> str:
    return f"{row.by or '-'}: {row.change} {row.about}, {row.outcome}. {row.reason}".rstrip()


def _saga(saga: SagaSummary, dashboard: str) -> str:
    end = utc_seconds(saga.ended_at) if saga.ended_at is not None else "now"
    node = saga.node or saga.new_node
    text = plain(f"{saga.kind} {node}, {saga.status}. {saga.reason}".rstrip())
    return (
        f"- {utc_seconds(saga.started_at)} to {end} {_link('saga', saga.saga, dashboard)}: {text}"
    )


def _evidence(kept: KeptEvidence, dashboard: str) -> str:
    fault = plain(kept.fault_signature or "unknown")
    of = f" --saga {kept.saga}" if kept.saga else ""
    cost = f"{kept.lost_gpu_hours:.2f} GPU-hours"
    command = _code(f"navarch evidence {kept.node}{of}")
    return f"- {_node(kept.node, dashboard)}, {fault}, {kept.outcome}, {cost}:{command}"


def _items(rows: Iterable[tuple[datetime, str]]) -> list[str]:
    return [f"- {utc_seconds(at)} {plain(text)}" for at, text in rows]


def _code(command: str) -> str:
    return f" `{escape_line(command).replace('`', '')}`" if command else ""


def _node(name: str, dashboard: str) -> str:
    return _link("node", name, dashboard)


def _link(kind: str, name: str, dashboard: str) -> str:
    if not dashboard:
        return plain(name)
    return f"[{plain(name)}]({dashboard.rstrip('/')}/#/{kind}/{quote(name, safe='')})"
