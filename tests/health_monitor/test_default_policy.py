"""The default policy judges every catalogue code and fault kind; its generated page is current."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

from agent.faults.xid_patterns import recognise
from schemas.enums import FaultKind
from schemas.health_records import HealthRecord
from schemas.node_events import Fault
from services.health_monitor.rules.node_health import Trigger, decide_fault
from services.health_monitor.rules.policy_document import render
from services.health_monitor.rules.policy_explanation import example, explain
from services.health_monitor.rules.policy_file import load_policy
from services.settings.packaged_files import resource
from services.settings.xid_catalogues import load_sxids, load_xids

NOW = datetime(2026, 11, 21, 1, 30, tzinfo=UTC)
POLICY = load_policy(resource("health-policy.yaml"))
XIDS = {entry.code: entry for entry in load_xids().codes}
FATAL = {48, 79, 95}
ACCESS_HANGS = 12028
CONTAINED = 94
"""NVIDIA asks for a restart of the program; the reset that remaps the row comes after the work."""


def judge(kind: str, code: int = 0, **fields: Any):
    values = {"id": "f", "time": NOW, "gpu_index": 0} | fields
    return POLICY.judge(Fault(pool="p", node="n", kind=kind, code=code, **values), {}, NOW)


def test_every_xid_in_use_is_in_the_catalogue():
    """109 codes are in use on A100 and later; each has a description and a mnemonic."""
    live = [entry for entry in XIDS.values() if entry.generations]
    assert len(live) == 109
    assert all(entry.description and entry.mnemonic for entry in XIDS.values())
    assert not set(XIDS) & {each.code for each in load_xids().unused}


@pytest.mark.parametrize("code", sorted(XIDS))
def test_each_xid_follows_nvidias_recommended_action(code: int):
    """Each code has a rule of its own, with the action that NVIDIA's catalogue recommends."""
    entry, explained = XIDS[code], explain(POLICY, example("xid", code))
    assert explained.rule != "unknown"
    if code in FATAL:
        assert (explained.result, explained.fatal) == ("unhealthy", True)
        return
    expected = {
        "RESTART_APP": {("healthy", "restart_app")},
        "IGNORE": {("healthy", "none")},
        "RESET_GPU": {("unhealthy", "reset_gpu"), ("degraded", "reset_gpu")},
        "RESTART_VM": {("unhealthy", "reboot")},
        "WORKFLOW_XID_45": {("healthy", "restart_app")},
        "WORKFLOW_NVLINK_ERR": {("degraded", "inspect")},
        "WORKFLOW_NVLINK5_ERR": {("degraded", "inspect")},
        "CHECK_MECHANICALS": {("unhealthy", "replace")},
        "UPDATE_SWFW": {("degraded", "inspect")},
        "CONTACT_SUPPORT": {("degraded", "inspect")},
        "CHECK_UVM": {("unhealthy", "reset_gpu")},
        "XID_154": {("degraded", "inspect")},
    }
    if code == CONTAINED:
        assert (explained.result, explained.action) == ("degraded", "reset_gpu")
        return
    if entry.action:
        assert (explained.result, explained.action) in expected[entry.action]


@pytest.mark.parametrize(
    ("code", "result", "action"),
    [
        (48, "unhealthy", "reset_gpu"),
        (79, "unhealthy", "replace"),
        (94, "degraded", "reset_gpu"),
        (95, "unhealthy", "reset_gpu"),
        (13, "healthy", "restart_app"),
        (31, "healthy", "restart_app"),
        (43, "healthy", "none"),
        (45, "healthy", "restart_app"),
        (63, "healthy", "none"),
        (64, "unhealthy", "reset_gpu"),
        (74, "degraded", "inspect"),
        (119, "unhealthy", "reset_gpu"),
        (162, "healthy", "none"),
        (159, "unhealthy", "reset_gpu"),
        (163, "degraded", "inspect"),
        (176, "degraded", "inspect"),
        (0, "degraded", "inspect"),
        (61, "degraded", "inspect"),
        (999, "degraded", "inspect"),
    ],
)
def test_well_known_xids(code: int, result: str, action: str):
    """Well-known codes have their known verdicts; unknown ones are degraded, never unhealthy."""
    judged = judge("xid", code)
    assert (judged.result, judged.action) == (result, action)


@pytest.mark.parametrize("entry", load_sxids().codes, ids=lambda entry: str(entry.code))
def test_each_sxid_follows_its_severity(entry):
    """SXIDs fatal to the fabric are unhealthy unless the line says otherwise; others are not."""
    judged = judge("sxid", entry.code, gpu_index=-1)
    said = judge("sxid", entry.code, gpu_index=-1, subcode="nonfatal")
    match entry.severity:
        case "always-fatal":
            assert (judged.result, judged.action, judged.fatal) == ("unhealthy", "reboot", True)
            assert said.result == "unhealthy"
        case "fatal":
            assert (judged.result, judged.action) == ("unhealthy", "reboot")
            assert said.result == "degraded"
        case "non-fatal" | "other" if entry.code == ACCESS_HANGS:
            assert (judged.result, judged.action) == ("unhealthy", "reboot")
        case "non-fatal" | "other":
            assert judged.result in ("healthy", "degraded")
    fatal = judge("sxid", entry.code, gpu_index=-1, subcode="fatal")
    assert (fatal.result, fatal.action, fatal.fatal) == ("unhealthy", "reboot", True)


@pytest.mark.parametrize(
    ("subcode", "result", "action"),
    [
        ("None", "healthy", "none"),
        ("Drain P2P", "degraded", "restart_app"),
        ("Recover IMEX Domain", "degraded", "inspect"),
        ("Drain and Reset", "unhealthy", "reset_gpu"),
        ("GPU Reset Required", "unhealthy", "reset_gpu"),
        ("Node Reboot Required", "unhealthy", "reboot"),
        ("Quiesce Fabric Segment", "unhealthy", "inspect"),
        ("", "degraded", "inspect"),
    ],
)
def test_xid_154_follows_the_recovery_action_in_its_text(subcode: str, result: str, action: str):
    """The driver names the recovery action; a word that is not known is for people, at once."""
    judged = judge("xid", 154, subcode=subcode)
    assert (judged.result, judged.action) == (result, action)


@pytest.mark.parametrize(
    ("kind", "fields", "result", "action"),
    [
        ("fallen_off_bus", {}, "unhealthy", "replace"),
        ("gpu_lost", {}, "unhealthy", "replace"),
        ("gpu_count", {}, "unhealthy", "replace"),
        ("ecc_dbe", {"metrics": {"ecc_dbe_count": 1}}, "unhealthy", "reset_gpu"),
        ("ecc_sbe", {"metrics": {"ecc_sbe_count": 200}}, "healthy", "none"),
        ("row_remap", {"metrics": {"remap_failed": True}}, "unhealthy", "replace"),
        (
            "row_remap",
            {"metrics": {"remap_failed": False, "remap_pending": True}},
            "degraded",
            "reset_gpu",
        ),
        ("row_remap", {"metrics": {"remapped_uncorrectable": 2}}, "degraded", "reset_gpu"),
        ("row_remap", {"metrics": {"remapped_correctable": 2}}, "healthy", "none"),
        ("page_retirement", {"metrics": {"retired_pages": 60}}, "unhealthy", "replace"),
        ("page_retirement", {"metrics": {"retired_pages": 3}}, "degraded", "reset_gpu"),
        ("thermal", {"metrics": {"temperature": 96}}, "degraded", "inspect"),
        ("thermal", {"metrics": {"temperature": 80}}, "healthy", "none"),
        (
            "thermal",
            {"metrics": {"temperature": 70}, "subcode": "hw_slowdown"},
            "degraded",
            "inspect",
        ),
        ("power", {"subcode": "power_brake"}, "degraded", "inspect"),
        ("nvlink", {"subcode": "down"}, "degraded", "reset_gpu"),
        ("nvlink", {"subcode": "slow"}, "degraded", "reset_gpu"),
        ("nvlink", {"subcode": "errors"}, "healthy", "none"),
        ("pcie", {"metrics": {"pcie_width": 8, "pcie_width_was": 16}}, "degraded", "reboot"),
        ("pcie", {"subcode": "generation"}, "degraded", "reboot"),
        ("pcie", {"subcode": "replays"}, "healthy", "none"),
        ("fabric", {}, "degraded", "inspect"),
        ("probe_hung", {}, "degraded", "inspect"),
        ("probe_failed", {}, "degraded", "inspect"),
        ("diagnostic", {}, "degraded", "inspect"),
        ("preemption", {}, "degraded", "replace"),
        ("maintenance", {}, "degraded", "inspect"),
        ("lines_lost", {}, "healthy", "none"),
    ],
)
def test_faults_from_sources_other_than_the_kernel_log(kind, fields, result, action):
    """Every other fault kind has a rule."""
    judged = judge(kind, **fields)
    assert (judged.result, judged.action) == (result, action)
    assert judged.rule != "unknown"


def test_every_fault_kind_has_a_rule():
    """A new kind needs a deliberate rule."""
    unknown = [k for k in get_args(FaultKind) if explain(POLICY, example(k)).rule == "unknown"]
    assert unknown == ["xid"]


@pytest.mark.parametrize(
    ("kind", "code", "fields", "times", "apart_seconds", "result"),
    [
        ("xid", 31, {}, 4, 700, "healthy"),
        ("xid", 31, {}, 5, 700, "degraded"),
        ("xid", 31, {}, 50, 1, "healthy"),
        ("xid", 74, {}, 3, 120, "unhealthy"),
        ("xid", 74, {"subcode": "ecc"}, 2, 120, "degraded"),
        ("xid", 74, {"subcode": "ecc"}, 3, 120, "unhealthy"),
        ("xid", 74, {"subcode": "ignore"}, 50, 120, "healthy"),
        ("xid", 149, {"metrics": {"severity": "fatal"}}, 1, 120, "unhealthy"),
        ("xid", 149, {"metrics": {"severity": "nonfatal"}}, 9, 120, "healthy"),
        ("nvlink", 0, {"subcode": "down"}, 3, 60, "unhealthy"),
        ("probe_hung", 0, {}, 3, 30, "unhealthy"),
        ("probe_failed", 0, {}, 4, 30, "degraded"),
        ("thermal", 0, {"metrics": {"temperature": 97}}, 3, 120, "unhealthy"),
        ("ecc_sbe", 0, {}, 3, 400, "degraded"),
    ],
)
def test_repeated_faults_change_the_verdict(kind, code, fields, times, apart_seconds, result):
    """Burst, repeat and flapping rules: repeated faults degrade the node or make it unhealthy."""
    record = HealthRecord(pool="p", node="n", status="healthy")
    for number in range(times):
        at = NOW + timedelta(seconds=number * apart_seconds)
        fault = Fault(
            pool="p",
            node="n",
            kind=kind,
            code=code,
            id=f"f{number}",
            time=at,
            gpu_index=0,
            **fields,
        )
        windows = {k: tuple(v) for k, v in record.detail.get("windows", {}).items()}
        judged = POLICY.judge(fault, windows, at)
        record, _ = decide_fault(record, fault, judged, Trigger(fault.id, number + 1, at))
    assert record.status == result


NVLINK5 = "NVRM: Xid (PCI:0009:01:00): {}"
NVLINK = (
    "NVRM: Xid (PCI:0000:8d:00): 74, pid='<unknown>', name=<unknown>, "
    "NVLink: fatal error detected on link 6({}, 0x0, 0x0)"
)
LINES = [
    # The table says reset; the line says non-fatal.
    (
        "145, RLW_REMAP Nonfatal XC0 i0 Link 05 (0x00000082 0x00000040 0x0)",
        "unhealthy",
        "reset_gpu",
    ),
    # The table says ignore; the line says fatal: the user's software took the link down.
    ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x026001c6 0x0 0x0)", "healthy", "none"),
    ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x1 0x0)", "unhealthy", "reset_gpu"),
    ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x000001c6 0x0 0x0)", "unhealthy", "reset_gpu"),
    # Beside another fault; the reset that NVIDIA asks for is due all the same.
    ("149, NETIR/NETIR_INT Fatal XC0 i0 Link 03 (0x00000018 0x0 0x0)", "unhealthy", "reset_gpu"),
    ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x028001c6 0x0 0x0)", "degraded", "inspect"),
    (
        "145, RLW_REMAP Nonfatal XC0 i0 Link 05 (0x00000082 0x00000001 0x0)",
        "healthy",
        "restart_app",
    ),
    ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x03f001c6 0x0 0x0)", "unhealthy", "reset_gpu"),
    (NVLINK.format("0x10000, 0x0, 0x0, 0x0, 0x0"), "degraded", "inspect"),
    (NVLINK.format("0x1, 0x0, 0x0, 0x0, 0x0"), "healthy", "none"),
    (NVLINK.format("0x2, 0x0, 0x0, 0x0, 0x0"), "degraded", "inspect"),
    (NVLINK.format("0x0, 0x0, 0x0, 0x40000, 0x0"), "unhealthy", "reset_gpu"),
    ("94, pid=7, name=python, Contained: SM (0x1). RST: No, D-RST: No", "degraded", "reset_gpu"),
    ("94, pid=7, name=python, Contained: SM (0x1). RST: Yes, D-RST: No", "unhealthy", "reset_gpu"),
]


@pytest.mark.parametrize(("line", "result", "action"), LINES)
def test_verdicts_of_real_kernel_lines(line: str, result: str, action: str):
    """The registers in the kernel's line decide the verdict, not the line's severity."""
    sighting = recognise(line if line.startswith("NVRM") else NVLINK5.format(line))
    assert sighting is not None
    judged = judge(sighting.kind, sighting.code, subcode=sighting.subcode, metrics=sighting.metrics)
    assert (judged.result, judged.action) == (result, action)


def test_health_policy_page_is_current():
    """docs/health-policy.md is what `policy_document` prints."""
    page = Path(__file__).parents[2] / "docs" / "health-policy.md"
    assert page.read_text(encoding="utf-8") == render()


def test_explanation_names_rule_and_repeat_rules():
    """A single XID 31 is a program error; the explanation also lists the repeat rules."""
    explained = explain(POLICY, example("xid", 31))
    assert (explained.rule, explained.result, explained.policy) == (
        "xid-restart-app",
        "healthy",
        POLICY.hash,
    )
    assert [(r.rule, r.count, r.window) for r in explained.repeats] == [
        ("xid-program-repeatedly", 5, "24h")
    ]
    assert explain(POLICY, example("xid", 79)).lasts == "until the node is uncordoned or replaced"
