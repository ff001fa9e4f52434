"""Providers' reports of their hosts become notices of nodes; failing checks are kept."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.instance_records import InstanceRecord
from schemas.messages import encode
from schemas.node_events import ProviderNotice, node_codec
from schemas.node_records import CloudNotice, NodeRecord
from schemas.subjects import node_event_wildcard
from schemas.topology import EVENTS, NODES
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.planner.cloud_notices import record_notice
from services.primitives.clock import SystemClock
from services.provisioner.host_reports.report_decisions import ReportChange, changes
from services.provisioner.host_reports.report_poller import ReportPoller
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider import Environment, HostReport, ScheduledEvent
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers import aws_reports
from services.provisioner.providers.aws import AwsProvider
from services.provisioner.providers.fake import FakeProvider
from services.provisioner.providers.gcp import GcpProvider
from tests.provisioner.gcp_server import GcpServer
from tests.provisioner.provisioner_parts import (
    FLEET,
    launch,
    providers,
    provision,
    recorded,
    request,
    steps,
)
from tests.support.settling import arriving

NOW = datetime(2026, 5, 5, tzinfo=UTC)
SOON = NOW + timedelta(days=3)
EVENT = ScheduledEvent(
    provider_id="i-1",
    event="instance-event-1",
    action="instance-retirement",
    text="EC2 schedules instance-retirement",
    effect="retire",
    starts_at=SOON,
)
RECORD = InstanceRecord(
    pool="web",
    instance="web-1",
    state="running",
    provider="fake",
    provider_id="i-1",
    token="t",
    launch=launch(),
    intended_at=NOW,
)
NODE = NodeRecord(pool="web", node="web-1", state="active", boot_id="b1")


def changed(
    report: HostReport, record: InstanceRecord = RECORD, node: NodeRecord | None = NODE
) -> ReportChange | None:
    """Return the change that a report makes to one instance, if any."""
    nodes = {"web.web-1": node} if node is not None else {}
    found = changes({"web.web-1": record}, nodes, report, NOW)
    return found[0] if found else None


def noticed(action: str = "instance-retirement", **about: Any) -> NodeRecord:
    """The node after its agent has announced the same."""
    notice = CloudNotice(action=action, effect="retire", at=NOW, deadline=SOON)
    return replace(NODE, notices={"agent-1": replace(notice, **about)})


def test_an_event_becomes_a_notice_once_and_its_end_a_withdrawal() -> None:
    """A notice has the boot that it is about; the node's record takes it and its withdrawal."""
    first = changed(HostReport(events=(EVENT,)))
    assert first is not None
    [notice] = first.events
    assert (notice.effect, notice.deadline, notice.boot_id) == ("retire", SOON, "b1")
    assert first.record.reported_notices == (notice.notice,)
    node = record_notice(NODE, notice, NOW)
    assert changed(HostReport(events=(EVENT,)), first.record, node) is None
    last = changed(HostReport(), first.record, node)
    assert last is not None
    [over] = last.events
    assert (over.notice, over.withdrawn, over.effect) == (notice.notice, True, "retire")
    assert last.record.reported_notices == ()
    assert record_notice(node, over, NOW).notices[notice.notice].withdrawn


@pytest.mark.parametrize(
    ("node", "announced"),
    [
        (noticed(), False),
        (noticed(deadline=SOON + timedelta(seconds=30)), False),
        (noticed(deadline=SOON + timedelta(hours=1)), True),
        (noticed(deadline=None), True),
        (noticed(action="instance-reboot"), True),
        (noticed(withdrawn=True), True),
    ],
)
def test_what_the_agent_has_announced_is_not_announced_again(
    node: NodeRecord, announced: bool
) -> None:
    """The same action at the same time is not announced again while the notice is in force."""
    found = changed(HostReport(events=(EVENT,)), node=node)
    assert (found is not None and len(found.events) == 1) is announced


def test_an_instance_without_a_node_waits_for_it() -> None:
    """The next report finds the node; another instance's events concern no one here."""
    assert changed(HostReport(events=(EVENT,)), node=None) is None
    assert changed(HostReport(events=(replace(EVENT, provider_id="i-2"),))) is None


def test_failing_checks_are_kept_as_long_as_they_fail() -> None:
    """A failing check is kept until it passes: it counts once the node is silent."""
    first = changed(HostReport(impaired={"i-1": "the host's check fails"}))
    assert first is not None
    assert (first.record.impaired_reason, first.events) == ("the host's check fails", ())
    last = changed(HostReport(), first.record)
    assert last is not None
    assert last.record.impaired_reason == ""


class Reporting(FakeProvider):
    """A provider whose API reports what it is given, or fails."""

    def __init__(self) -> None:
        environment = Environment(
            name="fake", fleet=FLEET, nats_url="nats://127.0.0.1:1", data_dir=Path()
        )
        super().__init__(options=FakeProvider.Options(), environment=environment)
        self.report: HostReport | ProviderError = HostReport()

    async def report_hosts(self) -> HostReport:
        """Return the report, or raise the error, that the test has set."""
        if isinstance(self.report, ProviderError):
            raise self.report
        return self.report


async def test_reports_are_published_before_they_are_recorded(bus: NatsBus) -> None:
    """A report that failed ends nothing."""
    provider = Reporting()
    made = await steps(bus, provider).provision(provision("web-1"))
    await bus.put(NODES, "web.web-1", encode(NODE))
    poller = ReportPoller(bus, SystemClock(), InstanceStore(bus), providers(provider))
    event = replace(EVENT, provider_id=made.provider_id)
    seen: list[tuple[int, int]] = []
    reports = (
        HostReport(events=(event,), impaired={made.provider_id: "checks fail"}),
        HostReport(events=(event,), impaired={made.provider_id: "checks fail"}),
        ProviderError("THROTTLE", "busy"),
        HostReport(),
    )
    for report in reports:
        provider.report = report
        await poller.poll()
        await arriving(bus)
        stored = await bus.read(EVENTS.name, node_event_wildcard("provider-notice"))
        record = await recorded(bus)
        seen.append((len(stored), len(record.reported_notices) + bool(record.impaired_reason)))
        if len(stored) == 1:  # what the pool-manager does
            notice = node_codec.decode(stored[0].data)
            assert isinstance(notice, ProviderNotice)
            node = record_notice(NODE, notice, notice.time)
            await bus.put(NODES, "web.web-1", encode(node))
    assert seen == [(1, 2), (1, 2), (1, 2), (2, 0)]


# --- Google --------------------------------------------------------------------------------------


async def test_google_s_announced_maintenance_is_a_retirement(
    gcp: GcpServer, make_gcp: Callable[..., GcpProvider]
) -> None:
    """A maintenance is announced with its window.

    An instance without a window, or with an unreadable time, has none.
    """
    provider = make_gcp()
    for name in ("web-1", "web-2", "web-3"):
        wanted = request(name, zone="us-central1-a", instance_type="a3-highgpu-8g")
        await provider.provision(wanted)
    first, second, _ = gcp.instances.values()
    window = {"windowStartTime": "2026-05-08T00:00:00Z", "windowEndTime": "2026-05-08T04:00:00Z"}
    first["resourceStatus"]["upcomingMaintenance"] = {"type": "SCHEDULED", **window}
    second["resourceStatus"]["upcomingMaintenance"] = {"windowStartTime": "soon"}
    [event] = (await provider.report_hosts()).events
    assert (event.provider_id, event.action) == ("us-central1-a/web-1", "scheduled-maintenance")
    assert (event.effect, event.starts_at) == ("retire", SOON)


# --- EC2 -----------------------------------------------------------------------------------------

STATUS = {
    "InstanceId": "i-1",
    "Events": [
        {
            "InstanceEventId": "instance-event-1",
            "Code": "instance-retirement",
            "Description": "The instance is running on degraded hardware",
            "NotBefore": SOON,
        },
        {"InstanceEventId": "2", "Code": "system-reboot", "Description": "[Completed] It was."},
        {"InstanceEventId": "3", "Code": "new-term", "Description": "unknown"},
    ],
    "SystemStatus": {
        "Status": "impaired",
        "Details": [{"Name": "reachability", "Status": "failed", "ImpairedSince": NOW}],
    },
    "InstanceStatus": {"Status": "impaired", "Details": []},
}
"""As the API's description has it."""


def test_ec2_s_events_in_force_are_read() -> None:
    """Completed or cancelled events are left out, and a new term does nothing."""
    [event] = aws_reports.scheduled_events([STATUS])
    assert (event.event, event.action, event.effect) == (
        *("instance-event-1", "instance-retirement"),
        "retire",
    )
    assert (event.starts_at, event.ends_at) == (SOON, None)


def test_ec2_s_failing_checks_are_read() -> None:
    """A failing check of the host is read with its beginning, where the API gives it."""
    system, instance = aws_reports.CHECKS
    assert aws_reports.impaired(system, [STATUS]) == {
        "i-1": "EC2's status check of its host fails since 2026-05-05 00:00 UTC"
    }
    assert aws_reports.impaired(instance, [STATUS]) == {
        "i-1": "EC2's status check of the instance fails"
    }
    assert aws_reports.impaired(system, [{"InstanceId": "i-2", "SystemStatus": {}}]) == {}


def test_the_end_of_a_capacity_block_is_a_retirement_ahead_of_it() -> None:
    """EC2 begins to terminate half an hour before, and of UltraServers an hour."""
    described = [
        {"InstanceId": "i-1", "InstanceType": "p5.48xlarge", "CapacityReservationId": "cr-1"},
        {
            "InstanceId": "i-2",
            "InstanceType": "p6e-gb200.36xlarge",
            "CapacityReservationId": "cr-1",
        },
        {"InstanceId": "i-3", "InstanceType": "p5.48xlarge", "CapacityReservationId": "cr-2"},
        {"InstanceId": "i-4", "InstanceType": "p5.48xlarge"},
    ]
    instances = aws_reports.reservations_of(described)
    blocks = [{"CapacityReservationId": "cr-1", "EndDate": SOON}, {"CapacityReservationId": "cr-2"}]
    found = aws_reports.block_ends(instances, blocks)
    assert [(each.provider_id, SOON - (each.starts_at or NOW)) for each in found] == [
        ("i-1", timedelta(minutes=30)),
        ("i-2", timedelta(minutes=60)),
    ]
    assert {(each.effect, each.action) for each in found} == {("retire", "capacity-block-end")}


async def test_ec2_is_asked_in_four_requests(make_aws: Callable[..., AwsProvider]) -> None:
    """EC2 is asked in four requests, and its answers are those of the API's description.

    Moto's events come from tags.
    """
    provider = make_aws()
    assert await provider.report_hosts() == HostReport()
    ids = []
    for name in ("web-1", "web-2", "web-3"):
        wanted = request(name, region="us-east-1", instance_type="p5.48xlarge")
        ids.append((await provider.provision(wanted)).provider_id)
    assert await provider.report_hosts() == HostReport()
    for resource, key, value in (
        (ids[0], "moto-event", "instance-retirement"),
        (ids[1], "moto-impaired", "system"),
        (ids[2], "moto-impaired", "instance"),
    ):
        tags = [{"Key": key, "Value": value}]
        await provider._call("create_tags", Resources=[resource], Tags=tags)
    report = await provider.report_hosts()
    assert [(each.provider_id, each.effect) for each in report.events] == [(ids[0], "retire")]
    assert report.events[0].starts_at == datetime(2030, 1, 1, tzinfo=UTC)
    assert report.impaired == {
        ids[1]: "EC2's status check of its host fails since 2030-01-01 00:00 UTC",
        ids[2]: "EC2's status check of the instance fails since 2030-01-01 00:00 UTC",
    }
