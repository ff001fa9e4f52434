"""Agents' messages are read as they are: 30 kB that unpack to 16 MiB are refused unread."""

import gzip
import zlib
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pytest
from prometheus_client import Counter
from prometheus_client.registry import CollectorRegistry

from schemas import subjects
from schemas.messages import DECOMPRESSED_BYTES_MAX, Invalid, LimitedDecoder, Record, decoder
from schemas.node_events import Telemetry, node_codec
from schemas.node_records import HeartbeatRecord
from schemas.permissions import AGENT_BYTES_MAX
from schemas.pool_records import PoolRecord
from services.bus.port import Stored
from services.metrics.fleet.prometheus_collector import FleetCollector
from services.metrics.service import Samples
from tests.redteam.test_agents_fields import written_by_agents

NOW: Final = datetime(2026, 11, 30, 7, tzinfo=UTC)
AGAIN_MAX: Final = 1_100
"""Python's own limit of calls within calls is 1,000."""


def sample(gpus: int) -> bytes:
    """Return a node's sample with so many GPUs."""
    readings = b",".join([b'{"index":0}'] * gpus)
    head = b'{"type":"io.navarch.agent.event.v1.telemetry","id":"t","time":"2026-11-30T07:00:00Z",'
    return head + b'"pool":"training","node":"n1","gpus":[' + readings + b"]}"


def packed_again(data: bytes, times: int) -> bytes:
    """Pack bytes, then what that is, and so on."""
    for _ in range(times):
        packing = zlib.compressobj(0, wbits=zlib.MAX_WBITS | 16)
        data = packing.compress(data) + packing.flush()
    return gzip.compress(data)


HOSTILE: Final = {
    "a small sample": gzip.compress(sample(1)),
    "a million GPUs": gzip.compress(sample(DECOMPRESSED_BYTES_MAX // 12 - 100)),
    "beyond every limit": gzip.compress(b" " * (2 * DECOMPRESSED_BYTES_MAX)),
    "packed again and again": packed_again(sample(1), AGAIN_MAX),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_packed_sample_costs_the_metrics_service_nothing(name: str) -> None:
    """One of 33 kB was 1.4 million GPUs and 500 MB; one of 10 kB ended the service."""
    data = HOSTILE[name]
    assert len(data) <= AGENT_BYTES_MAX
    invalid = Counter("invalid", "samples", registry=CollectorRegistry())
    collector = FleetCollector(lambda: NOW)
    samples = Samples(None, collector, invalid)  # type: ignore[arg-type] - it reads no bus
    subject = subjects.telemetry("training", "n1")

    samples.record(Stored(subject=subject, sequence=1, time=NOW, data=data, headers={}))

    assert invalid._value.get() == 1
    assert collector.samples == {}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", sorted(written_by_agents(), key=lambda each: each.__name__))
def test_nothing_that_an_agent_writes_is_unpacked(kind: Any, name: str) -> None:
    """Each message and record of an agent's, as each of its readers decodes it."""
    readers = [LimitedDecoder(kind)] + ([decoder(kind)] if issubclass(kind, Record) else [])
    for each in readers:
        with pytest.raises(msgspec.DecodeError, match=r"JSON is malformed|invalid"):
            each.decode(HOSTILE[name])
    assert isinstance(node_codec.decode(HOSTILE[name]), Invalid)


def test_the_records_that_are_unpacked_are_written_by_services_alone() -> None:
    """A record that an agent may write is not among them; the pools' are, and once."""
    found = {each for each in Record.__subclasses__() if each.is_packed_when_large}
    assert PoolRecord in found
    assert not found & written_by_agents()
    assert HeartbeatRecord in written_by_agents()
    with pytest.raises(msgspec.DecodeError):
        decoder(PoolRecord).decode(packed_again(b'{"name":"p"}', AGAIN_MAX))


def test_a_plain_sample_is_read() -> None:
    """The samples above are refused for nothing but their packing."""
    found = LimitedDecoder(Telemetry).decode(sample(1))
    assert (found.node, len(found.gpus)) == ("n1", 1)
