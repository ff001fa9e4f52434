"""No header of an outsider's message has an effect on what others have stored."""

from contextlib import suppress
from typing import Final

import nats
import pytest

from schemas import permissions
from schemas.stream_specs import StreamSpec
from schemas.topology import EVERY_STREAM
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Stored
from tests.redteam.test_account_walls import AGENT, concrete, plain
from tests.support.secured import Secured

HEADERS: Final[tuple[dict[str, str], ...]] = (
    {"Nats-Rollup": "all"},
    {"Nats-Rollup": "sub"},
    {"Nats-TTL": "1s"},
    {"Nats-TTL": "never"},
    {"Nats-Incr": "1"},
    {"Nats-Schedule": "@at 2026-01-01T00:00:00Z", "Nats-Schedule-Target": "{victim}"},
    {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "{victim}"},
    {"Nats-Schedule": "@every 1s", "Nats-Schedule-Source": "{victim}"},
    {"Nats-Schedule-Next": "purge", "Nats-Scheduler": "{victim}"},
    {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"},
    {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
    {"Nats-Msg-Id": "guessed"},
    {"Nats-Expected-Stream": "{stream}", "Nats-Rollup": "all"},
    {"Nats-Expected-Last-Subject-Sequence": "0", "Nats-Rollup": "all"},
    {"Nats-Expected-Last-Subject-Sequence-Subject": "{victim}"},
    {"Nats-Marker-Reason": "MaxAge"},
    {"Nats-Marker-Reason": "Purge"},
    {"KV-Operation": "PURGE", "Nats-Rollup": "all"},
    {"KV-Operation": "DEL"},
    {"Nats-Subject": "{victim}", "Nats-Stream": "{stream}", "Nats-Sequence": "1"},
    {"Nats-Stream-Source": "{stream} 1 > > {victim}"},
    {"Nats-Response-Type": "x", "Nats-Required-Api-Level": "99"},
)
"""Every header by which nats-server does more than store a message."""


def stored_by(who: str) -> list[tuple[StreamSpec, str]]:
    """The streams and subjects that a role may publish into, from its permissions."""
    return [
        (spec, concrete(subject))
        for subject in permissions.rules()[who.partition(":")[0]].publish
        for spec in EVERY_STREAM
        if any(covers(each, concrete(subject)) for each in spec.subjects)
    ]


def covers(pattern: str, subject: str) -> bool:
    """Return whether a subject, or each one of a wildcard, is one of a pattern."""
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted, given = wanted[:-1], given[: len(wanted) - 1]
    return len(wanted) == len(given) and all(
        each in ("*", other) for each, other in zip(wanted, given, strict=True)
    )


def victim_of(subject: str) -> str:
    """Return the same subject of another node or pool."""
    return subject.replace(".n1", ".n2") if ".n1" in subject else subject.replace(".x.", ".b.", 1)


@pytest.mark.parametrize("who", [AGENT, "operator"])
async def test_no_header_touches_what_others_have_stored(secured: Secured, who: str) -> None:
    """A heartbeat with `Nats-Rollup: all` removed the heartbeats of all nodes."""
    admin = await NatsBus.connect(secured.options("admin"))
    places = stored_by(who)
    for _, subject in places:
        await admin.publish(victim_of(subject), b"{}")
    before = {subject: await _of_others(admin, spec, subject) for spec, subject in places}
    client = await plain(secured, who)
    for spec, subject in places:
        for each in HEADERS:
            filled = {
                name: value.format(victim=victim_of(subject), stream=spec.name)
                for name, value in each.items()
            }
            with suppress(nats.errors.Error):
                await client.request(subject, b"", timeout=10, headers=filled)
    await client.close()
    after = {subject: await _of_others(admin, spec, subject) for spec, subject in places}
    await admin.close()

    assert all(before.values())
    assert before == after


@pytest.mark.parametrize("who", [AGENT, "operator"])
async def test_no_report_about_a_message_is_stored_as_anothers(secured: Secured, who: str) -> None:
    """A client may name where nats-server sends it; there the sender itself may publish."""
    places = [(spec, each, each.replace(".operator", ".alice")) for spec, each in stored_by(who)]
    places = [(spec, each, victim_of(to) if who == AGENT else to) for spec, each, to in places]
    client = await plain(secured, who)
    for _, subject, to in places:
        for only in ("true", "false"):
            with suppress(nats.errors.Error):
                headers = {"Nats-Trace-Dest": to, "Nats-Trace-Only": only}
                await client.publish(subject, b"{}", headers=headers)
    await client.flush()
    await client.close()
    admin = await NatsBus.connect(secured.options("admin"))
    found = [each for spec, _, to in places for each in await admin.read(spec.name, to)]
    await admin.close()
    assert places
    assert found == []


async def _of_others(bus: NatsBus, spec: StreamSpec, subject: str) -> list[Stored]:
    found = await bus.read(spec.name, victim_of(subject))
    return [each for each in found if each.subject != subject]


def test_outsiders_publish_into_these_streams() -> None:
    """The list above is not empty for a reason that would pass unnoticed."""
    found = {who: {spec.name for spec, _ in stored_by(who)} for who in (AGENT, "operator")}

    assert found == {AGENT: {"TELEMETRY", "INTAKE", "KV_HEARTBEATS"}, "operator": {"REQUESTS"}}
    assert [] == stored_by("viewer")
    assert [] == stored_by("bootstrap")
