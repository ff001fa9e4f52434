"""Requests what services and agents do at once for an operator: alerts, sweeps, tests, logs."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from schemas import subjects
from schemas.agent_commands import DiagnoseRequest, Diagnosis
from schemas.alert_records import SEVERITIES, OpenAlertRecord
from schemas.fleet_queries import NodeView
from schemas.log_excerpts import LogExcerpt, LogRequest
from schemas.messages import LimitedDecoder, decoder, encode
from schemas.node_work import JOB_NODES, JobNodes, JobNodesQuery
from schemas.permissions import GATEWAY
from schemas.topology import ALERTS
from services.bus.bucket_mirror import readable
from services.bus.port import Bus
from services.fleet_client.fleet_client import ROLE_NEEDED, FleetClient
from services.fleet_client.query_answers import decode_answer
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
_diagnosis: Final = msgspec.json.Decoder(Diagnosis)
JOB_SECONDS_MAX: Final = 30.0
"""A workload system may take 20 s to answer."""
NOTIFIER: Final = "notifier"

_records = decoder(OpenAlertRecord)


async def node_logs(fleet: FleetClient, node: NodeView, request: LogRequest) -> LogExcerpt:
    """Return what a node's agent keeps; NavarchError where it does not answer, with the reason."""
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
    """Return what each replica of a service or the gateway keeps, by name; empty: none answers."""
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


async def diagnose(
    fleet: FleetClient, node: NodeView, request: DiagnoseRequest, seconds_max: float
) -> Diagnosis:
    """Return what the tests found; NavarchError where none was run."""
    subject = subjects.node_command(node.pool, node.id, "diagnose")
    try:
        reply = await fleet.bus.request(subject, encode(request), timeout_seconds=seconds_max)
        found = _diagnosis.decode(reply.data)
    except NotPermitted as error:
        raise NavarchError(ROLE_NEEDED) from error
    except Unavailable as error:
        raise NavarchError(
            f"the agent of {node.id} has not answered within {seconds_max:g} s: "
            f"`navarch why {node.id}` says whether its heartbeats come ({error})"
        ) from error
    except msgspec.DecodeError as error:
        raise AnswerError(f"the agent of {node.id} answered with no diagnosis: {error}") from error
    if found.refused:
        raise AnswerError(f"{node.id} was not tested: {found.refused}")
    return found


async def open_alerts(bus: Bus) -> list[OpenAlertRecord]:
    """The open alerts, the most severe first; read from the records, also without a notifier."""
    records = [each for _, each in readable(await bus.entries(ALERTS), _records)]
    lasting = [each for each in records if each.opened is not None and each.ended is None]
    return sorted(lasting, key=_urgency)


async def job_nodes(fleet: FleetClient, job: str, pools: Sequence[str]) -> JobNodes:
    """Return the nodes on which a job runs, of these pools or of all."""
    query = JobNodesQuery(job=job, pools=tuple(pools))
    data = await fleet.query(JOB_NODES, query, timeout_seconds=JOB_SECONDS_MAX, who=NOTIFIER)
    return decode_answer(JobNodes, data, JOB_NODES, NOTIFIER)


def _urgency(record: OpenAlertRecord) -> tuple[int, datetime, str]:
    assert record.opened is not None
    return -SEVERITIES.index(record.opened.severity), record.opened.began, record.alert
