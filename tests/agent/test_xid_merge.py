"""Two witnesses of one XID, and the echoes of one GPU that leaves: reported once, and at once."""

from datetime import UTC, datetime

import pytest

from agent.faults.xid_merge import (
    APART_SECONDS_MAX,
    KEYS_MAX,
    LINE_SECONDS,
    MERGE_SECONDS,
    REPEAT_SECONDS_MAX,
    FaultDedup,
    XidMerge,
)
from agent.observations import XidEvent
from schemas.enums import FaultKind
from schemas.node_events import Fault

PCI = "0000:1b:00"
OTHER = "0000:43:00"


def event(code: int, pci: str = PCI) -> XidEvent:
    """Make NVML's word on an XID."""
    return XidEvent(index=0, pci=pci, code=code)


Said = tuple[float, str, int, str]
ORDERS: list[tuple[str, list[Said], list[str]]] = [
    ("the line first", [(0, "line", 79, PCI), (1, "nvml", 79, PCI)], ["line", "-"]),
    ("NVML first", [(0, "nvml", 79, PCI), (1, "line", 79, PCI)], ["nvml", "-"]),
    ("too far apart", [(0, "nvml", 79, PCI), (9, "line", 79, PCI)], ["nvml", "line"]),
    ("another code", [(0, "line", 79, PCI), (1, "nvml", 48, PCI)], ["line", "nvml"]),
    ("another GPU", [(0, "line", 79, PCI), (1, "nvml", 79, OTHER)], ["line", "nvml"]),
    ("a line without a GPU", [(0, "line", 8, ""), (1, "nvml", 8, PCI)], ["line", "-"]),
    (
        "two of each, NVML first",
        [(n, who, 63, PCI) for n, who in enumerate(("nvml", "nvml", "line", "line"))],
        ["nvml", "nvml", "-", "-"],
    ),
    (
        "a code of several lines",
        [(0, "line", 13, PCI), (0, "line", 13, PCI), (0, "nvml", 13, PCI)],
        ["line", "line", "-"],
    ),
    ("lines alone are never merged", [(0, "line", 13, PCI)] * 3, ["line"] * 3),
]


@pytest.mark.parametrize(("said", "published"), [o[1:] for o in ORDERS], ids=[o[0] for o in ORDERS])
def test_whichever_comes_first_is_reported(said: list[Said], published: list[str]):
    """The second word on the same XID of the same GPU, soon after, reports nothing new."""
    witnesses = XidMerge()
    found = []
    for at, who, code, pci in said:
        new = (
            witnesses.line(pci, code, at)
            if who == "line"
            else witnesses.event(event(code, pci), at, lines=True) == "publish"
        )
        found.append(who if new else "-")
    assert found == published


def test_a_code_whose_line_says_more_waits_for_it():
    """XID 154, NVLink 5 and program XIDs are reported by their line; without a line by NVML."""
    witnesses = XidMerge()
    assert witnesses.event(event(154), 0.0, lines=True) == "wait"
    assert witnesses.event(event(45), 0.0, lines=True) == "wait"
    assert witnesses.line(PCI, 45, 0.1)
    assert witnesses.event(event(149), 0.0, lines=True) == "wait"
    assert witnesses.line(PCI, 154, 0.1)
    assert witnesses.due(LINE_SECONDS) == [event(149)]
    assert witnesses.due(LINE_SECONDS + 1) == []
    assert not witnesses.line(PCI, 149, LINE_SECONDS + 1)


def test_without_a_kernel_log_nothing_waits():
    """Where lines cannot come, NVML alone is enough, at once."""
    assert XidMerge().event(event(154), 0.0, lines=False) == "publish"


def test_what_is_remembered_of_witnesses_is_bounded():
    """More kinds at once than there is room for are all reported; room comes back with time."""
    witnesses = XidMerge()
    assert all(witnesses.line(PCI, code, 0.0) for code in range(KEYS_MAX + 100))
    assert witnesses.event(event(5), 1.0, lines=True) == "known"
    assert witnesses.line(OTHER, 1, MERGE_SECONDS + 1)
    assert len(witnesses._seen) == 1


def fault(number: int, kind: FaultKind, code: int = 0, pci: str = PCI) -> Fault:
    """Make a fault."""
    moment = datetime(2026, 11, 21, tzinfo=UTC)
    return Fault(id=f"f{number}", time=moment, pool="p", node="n", kind=kind, code=code, pci=pci)


STORIES: list[tuple[str, list[tuple[float, FaultKind, int, str]], list[str]]] = [
    (
        "XID 79 and what follows it",
        [
            (0, "xid", 79, PCI),
            (0.1, "fallen_off_bus", 0, PCI),
            (1, "gpu_lost", 0, PCI),
            (5, "gpu_lost", 0, ""),
        ],
        ["", "f0", "f0", "f0"],
    ),
    (
        "the line before the XID",
        [(0, "fallen_off_bus", 0, PCI), (0.1, "xid", 79, PCI), (1, "gpu_lost", 0, PCI)],
        ["", "f0", "f0"],
    ),
    (
        "two GPUs",
        [(0, "xid", 79, PCI), (0.1, "fallen_off_bus", 0, OTHER), (0.2, "gpu_lost", 0, OTHER)],
        ["", "", "f1"],
    ),
    (
        "a nameless word hides no GPU's first",
        [(0, "gpu_lost", 0, ""), (0.1, "fallen_off_bus", 0, PCI)],
        ["", ""],
    ),
    (
        "long after",
        [(0, "xid", 79, PCI), (APART_SECONDS_MAX + 1, "gpu_lost", 0, PCI)],
        ["", ""],
    ),
    ("another XID is another story", [(0, "xid", 79, PCI), (1, "xid", 48, PCI)], ["", ""]),
    ("XID 79 again", [(0, "xid", 79, PCI), (1, "xid", 79, PCI)], ["", ""]),
]


@pytest.mark.parametrize(
    ("words", "expected"), [s[1:] for s in STORIES], ids=[s[0] for s in STORIES]
)
def test_a_gpu_that_leaves_is_one_story(
    words: list[tuple[float, FaultKind, int, str]], expected: list[str]
):
    """A word that soon repeats the first on a GPU is its echo; other GPUs' words are not."""
    echoes = FaultDedup()
    found = [
        echoes.first(fault(n, kind, code, pci), at) for n, (at, kind, code, pci) in enumerate(words)
    ]
    assert found == expected


def test_a_gpu_that_stays_lost_is_reported_again_after_a_minute():
    """A driver that never stops saying so does not hide it for ever."""
    echoes = FaultDedup()
    seconds = int(REPEAT_SECONDS_MAX) + 10
    first = [n for n in range(seconds) if not echoes.first(fault(n, "gpu_lost"), float(n))]
    assert first == [0, int(REPEAT_SECONDS_MAX) + 1]
