"""Small services that carry out orders and have logs, and keep who asked for what."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from schemas import subjects
from schemas.alert_records import Alert, AlertAcknowledge, AlertUpdate, OpenAlertRecord, alert_key
from schemas.drill_orders import DrillOrder
from schemas.hardware_denylist import HardwareAdd, HardwareForget, HardwareRecord
from schemas.identity_orders import IdentityAccept
from schemas.join_tokens import ForgetAnswer, NodeOfPool
from schemas.log_excerpts import LogExcerpt, LogLine
from schemas.messages import encode
from schemas.node_disconnections import ReadmitRequest
from schemas.node_events import BusAccess, DrillStarted, IdentityChanged
from schemas.node_work import JOB_NODES, JobNodes, JobNodesQuery
from schemas.operations import (
    ACCEPT_IDENTITY,
    DRILL,
    FORGET,
    PLAN_FORGET,
    RESUME,
    STOP,
    UPDATE_ALERT,
)
from schemas.permissions import WORK_DONE
from schemas.stops import ResumeRequest, Stop, StopRequest, StopsAnswer, WaitingStart
from schemas.sweeps import SweepAnswer, SweepLine, SweepRequest
from schemas.topology import ALERTS
from schemas.work_done import WorkDone, WorkDoneAccepted
from schemas.workload_checks import (
    WORKLOAD_CHECK,
    WorkloadCheck,
    WorkloadCheckAnswer,
    WorkloadCheckRequest,
)
from services.bus.port import Bus, Endpoint, Headers
from services.bus.protocol.endpoint_replies import requester

NOW: Final = datetime(2026, 11, 23, 9, tzinfo=UTC)
HOSTILE: Final = '"\n\x1b[31m</script>\u202e'
KEYS: Final = ("silence/training-1", "silence/serving-1")


def alert(key: str) -> Alert:
    """Return an open alert about the pool in its key."""
    pool = key.partition("/")[2].partition("-")[0]
    return Alert(
        severity="critical" if pool == "serving" else "warning",
        title=HOSTILE,
        text="t",
        pool=pool,
        kind="lost",
        key=key,
        event="e",
        time=NOW,
    )


async def open_alerts(bus: Bus) -> None:
    """Store two open alerts, of two pools."""
    for key in KEYS:
        record = OpenAlertRecord(alert=key, sequence=1, at=NOW, opened=alert(key))
        await bus.put(ALERTS, alert_key(key), encode(record))


@dataclass(slots=True)
class Orders:
    """Keeps what was asked: the order, who gave it, and the request."""

    asked: list[tuple[str, str, Any]] = field(default_factory=list)

    def _keep(self, name: str, data: bytes, headers: Headers, kind: type[Any]) -> Any:
        found = msgspec.json.decode(data, type=kind)
        self.asked.append((name, requester(headers, found.by), found))
        return found

    def endpoints(self, *nodes: str) -> Mapping[str, Endpoint]:
        """Subject -> endpoint; `nodes`: those whose agents have logs."""
        orders = {
            "acknowledge-alert": self._acknowledge,
            UPDATE_ALERT.name: self._update,
            "hardware-add": self._add,
            "hardware-forget": self._forget,
            "readmit": self._readmit,
            FORGET.name: self._forget_node,
            ACCEPT_IDENTITY.name: self._accept_identity,
            DRILL.name: self._drill,
            "sweep-now": self._sweep,
            WORK_DONE: self._work_done,
            STOP.name: self._stop,
            RESUME.name: self._resume,
        }
        return {
            **{subjects.order_wildcard(name): each for name, each in orders.items()},
            subjects.query("sweep-plan"): self._plan,
            subjects.query(PLAN_FORGET.name): self._plan_forget,
            subjects.query("stops"): _stops,
            subjects.query(JOB_NODES): self._job,
            subjects.query(WORKLOAD_CHECK): self._check,
            subjects.service_logs("notifier"): self._logs,
            **{
                subjects.node_command(each.partition("-")[0], each, "logs"): self._logs
                for each in nodes
            },
        }

    async def _acknowledge(self, data: bytes, headers: Headers) -> bytes:
        asked = self._keep("acknowledge-alert", data, headers, AlertAcknowledge)
        if asked.key not in KEYS:
            raise ValueError(f"no open alert {asked.key!r}; see navarch alerts list")
        by = requester(headers, asked.by)
        return encode(msgspec.structs.replace(alert(asked.key), acknowledged_by=by))

    async def _update(self, data: bytes, headers: Headers) -> bytes:
        asked = self._keep(UPDATE_ALERT.name, data, headers, AlertUpdate)
        if asked.key not in KEYS:
            raise ValueError(f"no open alert {asked.key!r}; see navarch alerts list")
        until = NOW if asked.silence_seconds else None
        to = asked.assign_to
        found = msgspec.structs.replace(alert(asked.key), assigned_to=to, silenced_until=until)
        return encode(found)

    async def _add(self, data: bytes, headers: Headers) -> bytes:
        asked = self._keep("hardware-add", data, headers, HardwareAdd)
        return msgspec.json.encode([_record(asked.kind, asked.value, asked.reason)])

    async def _forget(self, data: bytes, headers: Headers) -> bytes:
        asked = self._keep("hardware-forget", data, headers, HardwareForget)
        if asked.value != "GPU-1":
            raise ValueError(f"no {asked.kind} {asked.value!r} is listed")
        return msgspec.json.encode([_record(asked.kind, asked.value, HOSTILE)])

    async def _readmit(self, data: bytes, headers: Headers) -> bytes:
        asked = self._keep("readmit", data, headers, ReadmitRequest)
        event = BusAccess(id="r", time=NOW, pool=asked.pool, node=asked.node, refused=False)
        return encode(event)

    async def _forget_node(self, data: bytes, headers: Headers) -> bytes:
        return self._forgotten(self._keep(FORGET.name, data, headers, NodeOfPool))

    async def _plan_forget(self, data: bytes, headers: Headers) -> bytes:
        return self._forgotten(self._keep(PLAN_FORGET.name, data, headers, NodeOfPool))

    def _forgotten(self, asked: NodeOfPool) -> bytes:
        if asked.node != "training-1":
            raise ValueError(f"pool {asked.pool} launches its nodes: `navarch terminate`")
        answer = ForgetAnswer(
            pool=asked.pool, node=asked.node, provider=HOSTILE, is_listed=True, has_agent=True
        )
        return encode(answer)

    async def _accept_identity(self, data: bytes, headers: Headers) -> bytes:
        asked = self._keep(ACCEPT_IDENTITY.name, data, headers, IdentityAccept)
        event = IdentityChanged(
            id="i", time=NOW, pool=asked.pool, node=asked.node, status="accepted", by="bob"
        )
        return encode(event)

    async def _drill(self, data: bytes, headers: Headers) -> bytes:
        asked = self._keep(DRILL.name, data, headers, DrillOrder)
        event = DrillStarted(
            id="d", time=NOW, pool=asked.pool, node=asked.node, kind=asked.kind, by="bob"
        )
        return encode(event)

    async def _sweep(self, data: bytes, headers: Headers) -> bytes:
        self._keep("sweep-now", data, headers, SweepRequest)
        return encode(_swept(performed=True))

    async def _plan(self, data: bytes, headers: Headers) -> bytes:
        self._keep("sweep-plan", data, headers, SweepRequest)
        return encode(_swept(performed=False))

    async def _stop(self, data: bytes, headers: Headers) -> bytes:
        asked = self._keep("stop", data, headers, StopRequest)
        stop = Stop(pool=asked.pool, reason=asked.reason, by="bob", since=NOW)
        theirs = Stop(pool="serving", reason=HOSTILE, by="ada", since=NOW)
        return encode(StopsAnswer(stops=(stop, theirs)))

    async def _resume(self, data: bytes, headers: Headers) -> bytes:
        asked = self._keep("resume", data, headers, ResumeRequest)
        if asked.pool == "serving":
            raise ValueError("pool.serving is not stopped; stopped: fleet")
        return encode(StopsAnswer())

    async def _check(self, data: bytes, headers: Headers) -> bytes:
        asked = self._keep(WORKLOAD_CHECK, data, headers, WorkloadCheckRequest)
        found = WorkloadCheck(what="connect", passed=asked.node != "training-3", detail=HOSTILE)
        return encode(WorkloadCheckAnswer(notifier="slurm", checks=(found,)))

    async def _work_done(self, data: bytes, headers: Headers) -> bytes:
        asked = self._keep(WORK_DONE, data, headers, WorkDone)
        if asked.node != "training-1":
            raise ValueError(f"no saga drains {asked.node}: nothing was changed")
        return encode(WorkDoneAccepted(pool="training", node=asked.node, saga="drain-training-1-1"))

    async def _job(self, data: bytes, _: Headers) -> bytes:
        asked = msgspec.json.decode(data, type=JobNodesQuery)
        self.asked.append((JOB_NODES, "", asked))
        nodes = ("training-1", "training-3") if asked.job in ("4711", HOSTILE) else ()
        return encode(JobNodes(nodes=nodes, unknown=(f"pool x: {HOSTILE}",)))

    async def _logs(self, _: bytes, __: Headers) -> bytes:
        line = LogLine(time=NOW, level="INFO", text=HOSTILE)
        return encode(LogExcerpt(source="notifier-1", lines=(line,)))


def _record(kind: Any, value: str, reason: str) -> HardwareRecord:
    return HardwareRecord(kind=kind, value=value, since=NOW, reason=reason)


def _swept(*, performed: bool) -> SweepAnswer:
    line = SweepLine(
        verb="orphan",
        pool="training",
        instance="training-9",
        provider="aws",
        reason=HOSTILE,
        outcome="left" if performed else "",
    )
    return SweepAnswer(replica="r", at=NOW, performed=performed, lines=(line,))


async def _stops(_: bytes, __: Headers) -> bytes:
    begins = WaitingStart(pool="training", kind="replace", node="training-1", dollars_per_hour=31)
    return encode(
        StopsAnswer(
            stops=(
                Stop(reason="a wrong image", by="ann", since=NOW),
                Stop(pool="serving", reason=HOSTILE, by="ann", since=NOW),
            ),
            waiting=(begins,),
            waiting_total=1,
            dollars_per_hour=31,
        )
    )
