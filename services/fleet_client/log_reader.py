"""Reads log lines from the processes that keep them: nodes' agents and services."""

from typing import Final

import msgspec

from schemas import subjects
from schemas.fleet_queries import NodeView
from schemas.log_excerpts import LogExcerpt, LogRequest
from schemas.messages import LimitedDecoder, encode
from schemas.permissions import GATEWAY
from services.fleet_client.fleet_client import FleetClient
from services.operator_text.safe_text import escape_line
from services.primitives.errors import AnswerError, NavarchError, NotPermitted, Unavailable

AGENT_SECONDS_MAX: Final = 10.0
PING_SECONDS_MAX: Final = 5.0
FIRST_SECONDS_MAX: Final = 5.0
SILENCE_SECONDS: Final = 1.0
"""After the last replica that answers."""
READ_ROLE: Final = (
    "reading logs needs the role operator or admin. If your credentials have it, the bus's "
    "accounts are of an older release: run `navarch nats-config write`, then `push`"
)

_excerpt: Final = LimitedDecoder(LogExcerpt)


async def node_logs(fleet: FleetClient, node: NodeView, request: LogRequest) -> LogExcerpt:
    """What a node's agent keeps; NavarchError where it does not answer, with the reason."""
    if node.status == "launching":
        raise NavarchError(f"{node.id} is launching: its agent has not registered yet")
    if node.status == "terminated":
        raise NavarchError(
            f"{node.id} is terminated: it has no agent. `navarch evidence {node.id}` shows what "
            "was kept of it"
        )
    subject = subjects.node_command(node.pool, node.id, "logs")
    try:
        reply = await fleet.bus.request(subject, encode(request), timeout_seconds=AGENT_SECONDS_MAX)
    except NotPermitted as error:
        raise NavarchError(READ_ROLE) from error
    except Unavailable as error:
        raise NavarchError(await _silence(fleet, node)) from error
    found = _decoded(reply.data, f"the agent of {node.id}")
    if found.refused:
        raise AnswerError(f"the agent of {node.id} refuses: {escape_line(found.refused)}")
    return found


async def _silence(fleet: FleetClient, node: NodeView) -> str:
    """Why an agent does not answer."""
    if node.lost:
        return (
            f"the agent of {node.id} does not answer, and the node is lost: its heartbeats "
            f"stopped. `navarch why {node.id}` says since when and what is done"
        )
    try:
        ping = subjects.node_command(node.pool, node.id, "ping")
        await fleet.bus.request(ping, b"", timeout_seconds=PING_SECONDS_MAX)
    except Unavailable:
        return (
            f"the agent of {node.id} does not answer: it has ended, or its connection is lost. "
            f"`navarch why {node.id}` says whether its heartbeats come"
        )
    return (
        f"the agent of {node.id} runs, and does not answer this request: it is of an older release "
        "(`navarch version`), or was asked for its log too often just now. Ask again in 10 s; its "
        "log is on the node, too: `journalctl -u navarch-agent`"
    )


async def service_logs(
    fleet: FleetClient, service: str, request: LogRequest
) -> tuple[LogExcerpt, ...]:
    """What each replica of a service, or of the gateway, keeps, by name; empty: none answers."""
    subject = subjects.GATEWAY_LOGS if service == GATEWAY else subjects.service_logs(service)
    try:
        answers = await fleet.bus.request_all(
            subject, encode(request), SILENCE_SECONDS, FIRST_SECONDS_MAX
        )
    except NotPermitted as error:
        raise NavarchError(READ_ROLE) from error
    found = (_decoded(each, f"the {service}") for each in answers)
    return tuple(sorted(found, key=lambda each: each.source))


def _decoded(data: bytes, who: str) -> LogExcerpt:
    try:
        return _excerpt.decode(data)
    except msgspec.DecodeError as error:
        raise AnswerError(f"{who} answered with no log lines: {error}") from error
