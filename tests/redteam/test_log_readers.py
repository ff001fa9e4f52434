"""Logs are read by permitted roles alone: tried with each one's credentials on a server."""

import asyncio
from contextlib import suppress

import msgspec
import pytest
from nats.aio.msg import Msg

from agent.node_logs import NodeLogs
from agent.observations import KernelLogLine
from schemas import permissions, subjects
from schemas.log_excerpts import LogExcerpt, LogRequest
from schemas.messages import encode
from schemas.permissions import SERVICES
from schemas.topology import EVENTS, NODES
from services.bus.nats.nats_bus import NatsBus
from services.primitives.clock import SystemClock
from services.runtime.log_answers import KeptLine, LogAnswers, LogMemory, answer_logs
from tests.redteam.test_account_walls import barrier, plain
from tests.support.secured import Secured

AGENT = "agent:training/n1"
OF_NODE = subjects.node_command("training", "n1", "logs")
OF_OTHER = subjects.node_command("training", "n2", "logs")
OF_GATEWAY = subjects.GATEWAY_LOGS
OF_SERVICES = tuple(map(subjects.service_logs, SERVICES))
READERS = ("operator", "admin", permissions.GATEWAY)
"""The gateway lets its own operators alone read them."""
OTHERS = (
    *("viewer", "scheduler", permissions.SINK_READER),
    *(AGENT, "bootstrap:training/n9"),
)
"""Who may read no service's log; an agent may ask itself."""


def memory_of(text: str) -> LogMemory:
    """Return a memory that holds one line."""
    now = SystemClock().now().timestamp()
    memory = LogMemory(10, 10_000, now)
    memory.add(KeptLine(now, "INFO", text))
    return memory


async def replica(secured: Secured, service: str, name: str) -> NatsBus:
    """Return the connection of a service's replica, which answers for its log."""
    bus = await NatsBus.connect(secured.options(service))
    answers = LogAnswers(name, memory_of(f"of {name}"), SystemClock(), 10_000)
    subject = OF_GATEWAY if service == permissions.GATEWAY else subjects.service_logs(service)
    await bus.answer(subject, answers.answer)
    # Its subscription has been taken in once another of its calls has been answered.
    await bus.last_sequence(EVENTS.name)
    return bus


@pytest.mark.parametrize("who", OTHERS)
async def test_no_other_role_reads_a_log(secured: Secured, who: str) -> None:
    """Other roles neither ask for a log nor hear what others ask."""
    ask = [*OF_SERVICES, OF_GATEWAY, OF_OTHER, *(() if who == AGENT else (OF_NODE,))]
    hear = [subjects.LOGS, *OF_SERVICES, OF_GATEWAY, OF_OTHER]
    wanted = [("publish", each) for each in ask] + [("subscribe", each) for each in hear]

    assert set(wanted) == await secured.refused(who, wanted)


async def test_the_gateway_hears_no_request_for_anothers_log(secured: Secured) -> None:
    """A gateway that heard requests for another's log could answer them in its place."""
    hear = [("subscribe", each) for each in (subjects.LOGS, *OF_SERVICES, OF_OTHER)]

    assert set(hear) == await secured.refused(permissions.GATEWAY, hear)


@pytest.mark.parametrize("who", SERVICES)
async def test_a_service_answers_for_itself_alone(secured: Secured, who: str) -> None:
    """One that is taken over reads no other's log, and gives none out as another's."""
    own = subjects.service_logs(who)
    wanted = [("publish", each) for each in OF_SERVICES]
    others = [("subscribe", each) for each in (subjects.LOGS, *OF_SERVICES) if each != own]
    found = await secured.refused(who, [*wanted, *others, ("subscribe", own)])

    assert set(wanted + others) == found


@pytest.mark.parametrize("who", READERS)
async def test_operators_and_administrators_read_agents_and_every_replica(
    secured: Secured, who: str
) -> None:
    """Each replica answers, across the accounts; a service that does not run is no wait."""
    replicas = [await replica(secured, "notifier", f"notifier-{each}") for each in (1, 2, 3)]
    agent = await NatsBus.connect(secured.options(AGENT))
    logs = NodeLogs("n1", memory_of("of the agent"), SystemClock())
    logs.kernel(KernelLogLine("NVRM: of the kernel", 1))
    await agent.answer(OF_NODE, logs.answer)
    await agent.get(NODES, "training.n1")
    reader = await NatsBus.connect(secured.options(who))
    data = encode(LogRequest())
    answers = await reader.request_all(subjects.service_logs("notifier"), data, 2, 30)
    nothing = await reader.request_all(subjects.service_logs("metrics"), data, 30, 30)
    reply = await reader.request(OF_NODE, data, timeout_seconds=30)
    for each in (*replicas, agent, reader):
        await each.close()

    found = [msgspec.json.decode(each, type=LogExcerpt) for each in answers]
    of_node = msgspec.json.decode(reply.data, type=LogExcerpt)
    assert [] == nothing
    assert ["of notifier-1", "of notifier-2", "of notifier-3"] == sorted(
        line.text for each in found for line in each.lines
    )
    assert ["of the agent", "NVRM: of the kernel"] == [each.text for each in of_node.lines]


@pytest.mark.parametrize("who", READERS)
async def test_operators_and_administrators_read_every_gateway(secured: Secured, who: str) -> None:
    """The gateway itself too, for its callers; it may answer what it was asked, and once."""
    replicas = [await replica(secured, permissions.GATEWAY, f"gateway-{each}") for each in (1, 2)]
    reader = await NatsBus.connect(secured.options(who))
    data = encode(LogRequest())
    answers = await reader.request_all(OF_GATEWAY, data, 2, 30)
    for each in (*replicas, reader):
        await each.close()
    found = [msgspec.json.decode(each, type=LogExcerpt) for each in answers]
    texts = sorted(line.text for each in found for line in each.lines)
    assert texts == ["of gateway-1", "of gateway-2"]


async def test_the_gateway_writes_to_no_operator_unasked(secured: Secured) -> None:
    """The gateway may answer each request once, so one that is taken over forges no answer."""
    box = secured.options("operator").inbox_prefix
    wanted = [("publish", f"{box}.x"), ("publish", f"{permissions.inbox('notifier')}.x")]
    assert set(wanted) == await secured.refused(permissions.GATEWAY, wanted)


async def test_a_viewer_neither_hears_an_answer_nor_gives_one(secured: Secured) -> None:
    """Not by any subject it may ask for."""
    notifier = await replica(secured, "notifier", "notifier-1")
    operator = await NatsBus.connect(secured.options("operator"))
    viewer = await plain(secured, "viewer")
    heard: list[str] = []

    async def hear(message: Msg) -> None:
        heard.append(message.subject)
        with suppress(Exception):
            await viewer.publish(message.reply, b'{"source": "forged", "lines": []}')

    for subject in ("navarch.v1.>", "navarch.v1.logs.>", subjects.LOGS, "_INBOX.>", "_R_.>"):
        await viewer.subscribe(subject, cb=hear)
        await viewer.subscribe(subject, queue="q", cb=hear)
    await barrier(viewer)
    answers = await operator.request_all(subjects.service_logs("notifier"), b"", 1, 30)
    await barrier(viewer)
    for each in (notifier, operator, viewer):
        await each.close()

    assert ["notifier-1"] == [msgspec.json.decode(each, type=LogExcerpt).source for each in answers]
    assert [] == heard


async def test_an_answer_is_stored_nowhere(secured: Secured) -> None:
    """Where a reader names a stored subject as the one to answer, of a service and of an agent."""
    notifier = await replica(secured, "notifier", "notifier-1")
    agent = await NatsBus.connect(secured.options(AGENT))
    logs = NodeLogs("n1", memory_of("of the agent"), SystemClock())
    await agent.answer(OF_NODE, logs.answer)
    await agent.get(NODES, "training.n1")
    operator = await plain(secured, "operator")
    record = "$KV.NODES.training.n1"
    fact = "navarch.v1.node.training.n1.event.fault"
    asked = [
        (subject, target)
        for subject in (OF_NODE, subjects.service_logs("notifier"))
        for target in (record, fact)
    ]
    for subject, target in asked:
        await operator.publish(subject, b"", reply=target)
    await barrier(operator)
    # These are answered after those.
    async with asyncio.timeout(30):
        for subject in (OF_NODE, subjects.service_logs("notifier")):
            await operator.request(subject, b"", timeout=30)
    admin = await NatsBus.connect(secured.options("admin"))
    found = [await admin.last("KV_NODES", record), await admin.last(EVENTS.name, fact)]
    await admin.close()
    for each in (notifier, agent, operator):
        await each.close()

    assert [None, None] == found


async def test_a_gateway_with_accounts_of_before_goes_on_without_answering(
    secured: Secured,
) -> None:
    """The server refuses the subscription, as it does a viewer's; every other call is answered."""
    bus = await NatsBus.connect(secured.options("viewer"))
    answers = LogAnswers("gateway-1", memory_of("x"), SystemClock(), 10_000)
    await answer_logs(bus, OF_GATEWAY, answers.answer)
    assert await bus.last_sequence(EVENTS.name) == 0
    assert await bus.entries(NODES) == []
    await bus.close()
