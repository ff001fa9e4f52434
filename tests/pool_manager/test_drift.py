"""Nodes that were launched with other settings than their pool has now."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas import launch_fingerprints as fingerprints
from schemas.fault_signature import DRIFTED
from schemas.node_records import NodeRecord
from schemas.pool_events import NodesDrifted
from schemas.pool_records import PoolRecord
from schemas.saga_params import LaunchSpec
from schemas.settings import BudgetSpec, PluginSettings, ProviderChoice, Settings
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.planner.node_projection import launched
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.remediation import drift
from services.pool_manager.queries import pool_view
from services.pool_manager.reconciler import saga_params
from services.pool_manager.service import build
from services.settings.setup_validation import user_data_digest
from tests.pool_manager.fleet import events, nodes, peers, settings, settled
from tests.pool_manager.test_pool_planner import NOW, node, pool, snapshot, spec
from tests.pool_manager.test_renewals import BUSY, IDLE, SERVICE, replaced
from tests.support.explained import renewal_wait
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers

__all__ = ["peers"]

HOUR = timedelta(hours=1)
AWS = {"aws": PluginSettings(type="aws", options={"image": "ami-1", "retries": 3})}
OTHER_IMAGE = ProviderChoice(name="aws", options={"image": "ami-2", "disk_gb": 500})
SAME_IMAGE = ProviderChoice(name="aws", options={"image": "ami-1"})
TWO = (ProviderChoice(name="aws"), ProviderChoice(name="lambda"))


def configured(image: str = "ami-1", at: Any = NOW, **changes: Any) -> PoolRecord:
    """Return a pool with these settings since `at`."""
    changes = {
        "provider": "aws",
        "drift": "replace",
        "budget": BudgetSpec(max_unavailable=1),
    } | changes
    options = {"aws": msgspec.structs.replace(AWS["aws"], options={"image": image})}
    sources = fingerprints.sources_of(
        spec(**changes), options, fingerprints.digest(changes.get("user_data", ""))
    )
    record = pool(2, spec=spec(**changes), launch_sources=sources)
    record = fingerprints.configured(None, record, NOW)
    return msgspec.structs.replace(record, configured_at=at)


def launched_by(record: PoolRecord, name: str = "a", **changes: Any) -> NodeRecord:
    """A node that was launched with a pool's settings, an hour before now."""
    launch = LaunchSpec(
        fleet="f", provider="aws", instance_type="p5", fingerprint=record.launch_digests
    )
    return node(name, launch=launch, **{"admitted_at": NOW - HOUR, **changes})


BEFORE = configured()


@pytest.mark.parametrize(
    ("now", "found"),
    [
        (configured(), ()),
        (configured("ami-2"), ("image",)),
        (configured(instance_type="p6"), ("instance type",)),
        (configured(labels={"a": "b"}), ("labels",)),
        (configured(setup_commands=("ls",)), ("setup commands",)),
        (configured(user_data="auto"), ("user data",)),
        (configured("ami-2", labels={"a": "b"}), ("image", "labels")),
        (configured(provider="gcp"), ("provider",)),
        (configured(providers=TWO), ()),
        (configured("ami-2", providers=TWO), ("image",)),
        (configured(providers=(OTHER_IMAGE,)), ("image",)),
        (configured("ami-2", providers=(SAME_IMAGE,)), ()),
        (configured("ami-2", drift="ignore"), ()),
        (configured("ami-2", drift="report"), ("image",)),
        (configured("ami-2", at=None), ()),
        (configured("ami-2", at=NOW - 3 * HOUR), ()),
        (configured(max_price=3.0, zones=("z",), spares=1), ()),
    ],
)
def test_what_a_launch_depends_on_is_compared(now: PoolRecord, found: tuple[str, ...]) -> None:
    """Nothing else; and nothing that was launched long after the settings changed."""
    assert drift.differences(launched_by(BEFORE), now) == found


def test_a_node_without_digests_never_drifts() -> None:
    """Nodes of an older release, adopted ones, or ones made without a launch have no digests."""
    for launch in (None, LaunchSpec(fleet="f", provider="aws", instance_type="p5")):
        assert drift.differences(node("a", launch=launch), configured("ami-2")) == ()


def test_a_digest_that_either_does_not_know_is_left_out() -> None:
    """A later release compares more, and a template may not be readable here."""
    of_later = configured()
    known = of_later.launch_digests | {"network": "x"}
    more = msgspec.structs.replace(of_later, launch_digests=known)
    assert drift.differences(launched_by(BEFORE), more) == ()
    assert drift.differences(launched_by(more), BEFORE) == ()


def test_user_data_is_compared_by_its_content(tmp_path: Path) -> None:
    """The file's name means nothing; one that cannot be read is not compared."""
    for name, text in (("a", "#!one"), ("b", "#!one"), ("c", "#!two")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    one, same, other = (user_data_digest(each, tmp_path) for each in "abc")
    assert one == same != other
    assert user_data_digest("missing", tmp_path) == ""


def test_the_provisioners_word_is_recorded() -> None:
    """The provisioner's own configuration counts, which may be older than the pool-manager's."""
    record = launched_by(BEFORE, state="launching")
    made = {"provider": "aws", "instance_type": "p5", "sources": {"image at aws": "older"}}
    found = launched(record, made)
    assert found is not None
    assert found.fingerprint == BEFORE.launch_digests | {"image at aws": "older"}
    of_older = msgspec.structs.replace(
        record, launch=LaunchSpec(fleet="f", provider="aws", instance_type="p5")
    )
    assert launched(of_older, made).fingerprint == {}  # type: ignore[union-attr]


def test_a_launch_has_the_digests_of_its_moment() -> None:
    """The digests are those of the pool's record as it is when the saga begins."""
    decided = plan(snapshot(msgspec.structs.replace(BEFORE, desired=1)), NOW)
    [opened] = decided.start.values()
    launch = saga_params("f", decided.record, opened).launch
    assert launch is not None
    assert launch.fingerprint == BEFORE.launch_digests


def test_what_changes_a_launch_is_noted_with_its_time() -> None:
    """A restart with the same settings, or with others that concern no launch, notes nothing."""
    later = NOW + HOUR
    assert fingerprints.configured(None, BEFORE, later).configured_at == later
    assert fingerprints.configured(BEFORE, configured(spares=1), later).configured_at == NOW
    assert fingerprints.configured(BEFORE, configured("ami-2"), later).configured_at == later


@pytest.mark.parametrize(
    ("changes", "use", "leaves"),
    [
        ({}, IDLE, ["a"]),
        ({}, BUSY, []),
        ({"windows": (SERVICE,)}, BUSY, ["a"]),
        ({"drift": "report"}, IDLE, []),
    ],
)
def test_it_is_replaced_when_that_disturbs_least(
    changes: dict[str, Any], use: Any, leaves: list[str]
) -> None:
    """A drifted node leaves as an old one does, but no work is cut short outside of windows."""
    record = configured("ami-2", **changes)
    found = snapshot(record, launched_by(BEFORE), launched_by(record, "b"))
    decided = plan(replace(found, use={"a": use, "b": use}), NOW)
    assert replaced(decided) == leaves
    assert {each.fault_signature for each in decided.start.values()} <= {DRIFTED}


def test_it_is_published_once_after_each_change() -> None:
    """The event is published also where nothing is replaced."""
    record = configured("ami-2", drift="report")
    decided = plan(snapshot(record, launched_by(BEFORE), launched_by(record, "b")), NOW)
    [event] = decided.events
    assert isinstance(event, NodesDrifted)
    assert (event.nodes, event.names, event.differences) == (1, ("a",), ("image",))
    again = plan(snapshot(decided.record, launched_by(BEFORE), launched_by(BEFORE, "b")), NOW)
    assert again.events == ()


def test_another_driver_is_reported_and_never_a_reason() -> None:
    """The same image would bring the same one."""
    record = configured(driver_version="570.1")
    odd = launched_by(BEFORE, driver_version="550.2")
    assert drift.remark(odd, record) == "driver 550.2 where 570.1 is stated"
    assert plan(replace(snapshot(record, odd, node("b")), use={"a": IDLE}), NOW).start == {}
    assert drift.remark(launched_by(BEFORE, driver_version="570.1"), record) == ""


def test_why_and_status_say_it() -> None:
    """Both state what differs, and what is done about it."""
    record, odd = configured("ami-2"), launched_by(BEFORE)
    assert "launched with another image) once it has no work, when" in renewal_wait(
        odd, record, NOW
    )
    only = configured("ami-2", drift="report")
    assert renewal_wait(odd, only, NOW).startswith("It is reported, and left as it is: drifted")
    view = pool_view(only, [odd], NOW)
    assert (view.drifted, view.to_renew) == (1, 0)


async def test_a_changed_image_is_noticed_after_a_restart(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The image of a configured pool is in the configuration alone; it is published once."""
    assert peers is not None

    def with_image(image: str) -> Settings:
        options = PluginSettings(type="fake", options={"image": image})
        changed = settings(min_nodes=1, drift="report")
        return msgspec.structs.replace(changed, providers={"test": options})

    async with Running(server.url, "pool-manager", build, with_image("one")):
        [name] = await eventually(settled(bus, 1))
    async with Running(server.url, "pool-manager", build, with_image("two")):
        [event] = await eventually(lambda: events(bus, "nodes-drifted"))
        assert (event["names"], event["differences"]) == ([name], ["image"])
        [view] = await nodes(bus)
        assert view.renewal == "drifted: launched with another image"
