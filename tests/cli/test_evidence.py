"""`navarch evidence` and `report`: their text, computed from values."""

import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from schemas.evidence_bundles import EvaluatedFault, EvidenceBundle, KernelLine
from schemas.gpu_samples import GpuSample
from schemas.node_events import Fault, GpuIdentity, Repaired, Telemetry, Verdict
from schemas.node_records import NodeRecord
from services.cli.commands.evidence_command import write_files
from services.cli.text.evidence_text import FILES, README, files, summary
from services.fleet_client.repair_report import out_of_service, rows
from services.operator_text.quantities import gpu_hours
from services.primitives.errors import NavarchError

NOW = datetime(2026, 11, 21, 1, 35, tzinfo=UTC)
NODE = {"pool": "training", "node": "n1"}
FAULT = Fault(
    id="f1", time=NOW, kind="xid", code=79, gpu_index=3, gpu_uuid="GPU-3", gpu_serial="s3", **NODE
)
BUNDLE = EvidenceBundle(
    **NODE,
    saga="replace-n1-1",
    outcome="replaced",
    new_node="n2",
    fault_signature="xid-79",
    unhealthy_at=NOW,
    restored_at=NOW + timedelta(minutes=30),
    verdict=Verdict(
        id="v", time=NOW, status="unhealthy", rule="off-the-bus", policy="9f2c", fault="f1", **NODE
    ),
    provider="lambda",
    provider_id="i-123",
    driver_version="550.54.15",
    dollars_per_hour=24.0,
    lost_gpu_hours=4.0,
    gpus=(GpuIdentity(index=3, uuid="GPU-3", serial="s3", pci="0000:3b:00"),),
    faults=(EvaluatedFault(fault=FAULT, stored_at=NOW, result="unhealthy", rule="off-the-bus"),),
    kernel_lines=(KernelLine(time=NOW, line="NVRM: Xid (PCI:0000:3b:00): 79"),),
    samples=tuple(
        Telemetry(
            id=f"t{seconds}",
            time=NOW + timedelta(seconds=seconds),
            gpus=(GpuSample(index=3, temperature_celsius=61), GpuSample(index=4)),
            **NODE,
        )
        for seconds in (-5, 5)
    ),
    omitted={"timeline": 7},
)


def test_the_summary_has_what_a_vendor_asks_for() -> None:
    """The GPU, the driver's log line, the time, and that GPU's readings around it."""
    text = summary(BUNDLE)
    for wanted in (
        "FAULT REPORT  n1 (pool training): xid-79",
        "replaced by n2, in service since 2026-11-21 02:05:00.000 UTC",
        "30m, 4.00 GPU-hours lost, $12.00 paid for them",
        "NVIDIA driver        550.54.15",
        "instance id          i-123",
        "off-the-bus (health policy 9f2c)",
        "NVRM: Xid (PCI:0000:3b:00): 79",
        "1 samples before the fault and 1 after it",
        "Omitted because of the size limit: 7 of timeline.",
    ):
        assert wanted in text
    readings = text.partition("READINGS")[2].splitlines()
    assert [line.split()[4] for line in readings if "before" in line or "after " in line][:2] == [
        "3",
        "3",
    ]


def test_evidence_is_written_as_a_folder_and_as_an_archive(tmp_path: Path) -> None:
    """Both have the same files, each named in the README."""
    where = write_files(tmp_path, BUNDLE)
    archive = write_files(tmp_path / "a" / "ticket.tar.gz", BUNDLE)
    with tarfile.open(archive) as saved:
        inside = {Path(name).name for name in saved.getnames()}
    assert {each.name for each in where.iterdir()} == inside == set(FILES) == set(files(BUNDLE))
    readme = (where / README).read_text()
    assert [name for name in FILES if name not in readme] == []


def test_an_unwritable_path_is_one_sentence(tmp_path: Path) -> None:
    """An unwritable path is an error without a traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(NavarchError, match="cannot write to"):
        write_files(tmp_path / "file" / "below", BUNDLE)


def repaired(number: int, minutes: float, fault_signature: str = "xid-79") -> Repaired:
    """Return one repair of an eight-GPU node."""
    return Repaired(
        id=f"r{number}",
        time=NOW,
        pool="training",
        node=f"n{number}",
        outcome="replaced",
        fault_signature=fault_signature,
        unhealthy_at=NOW,
        restored_at=NOW + timedelta(minutes=minutes),
        gpu_count=8,
        lost_gpu_hours=minutes * 8 / 60,
    )


def test_the_report_counts_by_pool_and_fault_the_most_expensive_first() -> None:
    """The report has the median, and the 95th percentile by nearest rank."""
    found = rows([*(repaired(number, number) for number in range(1, 21)), repaired(99, 60, "ecc")])
    assert [(each.fault, each.count, each.lost_gpu_hours) for each in found] == [
        ("xid-79", 20, 28.0),
        ("ecc", 1, 8.0),
    ]
    first = found[0]
    assert (first.repair_seconds_median, first.repair_seconds_p95) == (630.0, 1140.0)
    assert (first.repair_seconds_longest, first.longest) == (1200.0, "n20")


def test_nodes_out_of_service_are_named_and_spares_are_not() -> None:
    """A cordoned spare is not an unhealthy node."""
    nodes = [
        NodeRecord(pool="p", node="a", state="active", health="unhealthy", health_reason="XID 48"),
        NodeRecord(pool="p", node="b", state="active", lost=True, lost_at=NOW),
        NodeRecord(
            pool="p",
            node="c",
            state="active",
            cordoned=True,
            cordoned_at=NOW,
            changed_at=NOW + timedelta(hours=1),  # its agent was restarted
        ),
        NodeRecord(pool="p", node="g", state="leaving", cordoned=True, saga="scale-down-g-1"),
        NodeRecord(pool="p", node="d", state="active", cordoned=True, spare=True),
        NodeRecord(pool="p", node="e", state="terminated", health="unhealthy"),
        NodeRecord(pool="p", node="f", state="active"),
    ]
    assert [(each.node, each.why, each.since) for each in out_of_service(nodes)] == [
        ("a", "XID 48", None),
        ("b", "silent", NOW),
        ("c", "cordoned", NOW),
    ]


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0.00"), (0.00001, "<0.001"), (0.0123, "0.012"), (123.456, "123.46")],
)
def test_few_hours_are_shown_exactly(count: float, expected: str) -> None:
    """A demo's seconds are not zero, and no list shows an exponent."""
    assert expected == gpu_hours(count)
