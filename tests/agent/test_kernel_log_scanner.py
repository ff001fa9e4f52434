"""Noise: no kernel log content raises, and what was planted is what is found."""

import json
import logging
import random
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.__main__ import run
from agent.fault_reporter import FaultReporter, ReporterInputs
from agent.faults.fault_builder import GpuMap, NodeIdentity
from agent.faults.kernel_log_scanner import KernelLogScanner
from agent.faults.xid_patterns import RecognisedFault, recognise
from agent.observations import KernelLogLine
from agent.operator_tools import parse
from agent.sources.kernel_log_parser import parse_kmsg
from agent.sources.kernel_log_reader import KernelLogReader
from agent.sources.log_formats import parse_text
from services.primitives.clock import SystemClock
from tests.agent.test_xid_patterns import FORMATS

DATA: Final = Path(__file__).parent / "data"
LINES: Final = 250
"""Of one example."""
PIECES: Final = (
    *(
        b"NVRM: Xid (PCI:",
        b"): ",
        b"SXid",
        b"nvidia-nvswitch",
        b"fallen off the bus",
        b"GPU is lost",
    ),
    *(
        b", pid=",
        b"name=",
        b"0000:3b:00",
        b"GPU-I:",
        b"Link ",
        b"(0x",
        b"))))",
        b"3,1,2,-;",
        b"<3>",
    ),
    *(b"[  1.5] ", b"Nov 21 01:02:03 n kernel: ", b"\\x0a", b"\\xff", b"\n SUBSYSTEM=pci", b"\x00"),
    *(b"\xff\xfe", "é".encode(), "\u2028\u202e".encode(), b"9" * 40, b"0x" + b"f" * 40, b"-" * 9),
    *(b"changed from 0x0 (None) to 0x1 (GPU Reset Required)", b"NETIR_LINK_EVT Fatal XC0 i0"),
)


FAULTS: Final = [text.encode() for text, _ in FORMATS]
SEEDS: Final = [
    *FAULTS,
    *(b"3,77,99,-;" + text for text in FAULTS),
    *(b"", b"6,1,2,-;", b"usb 1-1: new device"),
]


class RecordingOutbox:
    """Takes what is to be sent, and keeps nothing."""

    def __init__(self) -> None:
        self.count = 0

    def put(self, message: Any) -> None:
        assert json.loads(message.data)["id"] == message.msg_id
        self.count += 1

    def take_dropped(self) -> int:
        return 0


def mangled(chance: random.Random, seeds: list[bytes]) -> bytes:
    """Write a line that no kernel wrote: pieces of real ones, cut, doubled, shuffled, flipped."""
    line = bytearray(chance.choice(seeds))
    for _ in range(chance.randrange(5)):
        at = chance.randrange(len(line) + 1)
        match chance.randrange(6):
            case 0:
                line[at:at] = chance.choice(PIECES)
            case 1:
                del line[at : at + chance.randrange(20)]
            case 2:
                line[at : at + 1] = bytes((chance.randrange(256),))
            case 3:
                line = line[at:] + line[:at]
            case 4:
                line[at:at] = line[at : at + 40] * chance.randrange(4)
            case _:
                line[at:at] = chance.randbytes(chance.randrange(12))
    return bytes(line)


@given(st.integers(min_value=0))
def test_no_line_stops_the_agent(seed: int):
    """Mangled lines go the whole way, from bytes to the fault that would be sent; nothing raises.

    25,000 by default; with HYPOTHESIS_PROFILE=explore more than a million, in a minute or two.
    """
    logging.disable(logging.CRITICAL)
    try:
        assert all_the_way(random.Random(seed)) >= 0
    finally:
        logging.disable(logging.NOTSET)


def all_the_way(chance: random.Random) -> int:
    """Read LINES mangled lines, and say how many faults they made."""
    outbox = RecordingOutbox()
    reporter = FaultReporter(
        NodeIdentity("training", "n1", "0777c57c-3f80"),
        outbox,  # type: ignore[arg-type]
        SystemClock(),
        ReporterInputs(gpus=GpuMap, lines=lambda: True, job=lambda *_: ""),
        any_facility=True,
    )
    log = KernelLogReader(
        Path("kmsg"), after=-1, on_line=reporter.line, on_gap=lambda *_: reporter.due(0)
    )
    for number in range(LINES):
        line = mangled(chance, SEEDS)
        log._take(line)
        for parsed in (parse_text(line), parse_kmsg(line)):
            if parsed is not None:
                reporter.line(parsed._replace(sequence=number))
    return outbox.count


def test_mangled_lines_are_not_all_nonsense():
    """Some still contain faults, so that later stages are tested too."""
    assert sum(all_the_way(random.Random(seed)) for seed in range(4)) > LINES // 100


def planted() -> list[dict[str, Any]]:
    """Return the faults that were planted in the storm."""
    text = (DATA / "storm.faults.jsonl").read_text(encoding="ascii")
    return [json.loads(line) for line in text.splitlines()]


def published(sighting: RecognisedFault, line: KernelLogLine) -> dict[str, Any]:
    """Say what was found in the words of the list."""
    found = {
        "code": sighting.code,
        "kind": sighting.kind,
        "pci": sighting.pci,
        "sequence": line.sequence,
    }
    return found | ({"subcode": sighting.subcode} if sighting.subcode else {})


async def test_a_storm_hides_nothing_and_makes_nothing_up(tmp_path: Path):
    """Every planted fault among a thousand good, bad and forged lines is found, and no other."""
    (tmp_path / "kmsg").write_bytes((DATA / "storm.kmsg").read_bytes())
    scanner, found = KernelLogScanner(), []

    def take(line: KernelLogLine) -> None:
        if (sighting := scanner.scan(line)) is not None:
            found.append(published(sighting, line))

    log = KernelLogReader(tmp_path / "kmsg", after=-1, on_line=take, on_gap=lambda *_: None)
    log.start()
    log.stop()
    assert found == planted()


def test_parse_finds_the_same(capsys: pytest.CaptureFixture[str]):
    """`navarch-agent parse` prints what the agent would see; cut lines make it exit with 1."""
    assert run(["parse", str(DATA / "storm.kmsg")]) == 1
    faults = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    keys = ("code", "kind", "pci", "sequence", "subcode")
    assert [{key: each[key] for key in keys if key in each} for each in faults] == planted()


STAMPED = "[{stamp:12.6f}] "
TEXTS: dict[str, str] = {
    "dmesg": STAMPED + "{text}",
    "dmesg -x": "{facility:<6}:{level:<6}: " + STAMPED + "{text}",
    "dmesg -r": "<{priority}>" + STAMPED + "{text}",
    "dmesg -T": "[Sat Nov 21 01:02:03 2026] {text}",
    "dmesg --time-format iso": "2026-11-21T01:02:03,{stamp:06.0f}+00:00 {text}",
    "journalctl -k": "Nov 21 01:02:03 gpu-node-7 {source}: {text}",
    "journalctl -k -o short-iso": "2026-11-21T01:02:03+0000 gpu-node-7 {source}: {text}",
    "kern.log": "Nov 21 01:02:03 gpu-node-7 {source}: " + STAMPED + "{text}",
}
SHOWS_FORGED = {"dmesg -x", "dmesg -r", "journalctl -k", "journalctl -k -o short-iso", "kern.log"}
"""The others do not say who wrote a line."""


@pytest.mark.parametrize("form", TEXTS)
def test_the_storm_is_read_in_every_form_of_text(form: str):
    """The same storm as dmesg, journalctl and syslog print it gives the same faults."""
    written = []
    for raw in (DATA / "storm.kmsg").read_bytes().split(b"\n"):
        line = parse_kmsg(raw)
        if line is None or (line.facility != 0 and form not in SHOWS_FORGED):
            continue
        shown = TEXTS[form].format(
            stamp=line.timestamp_us / 1e6,
            text=" ".join(line.text.split("\n")),
            priority=line.facility * 8 + line.priority,
            facility="user" if line.facility else "kern",
            level="err",
            source="trainer[99]" if line.facility else "kernel",
        )
        written.append(shown.encode("utf-8", "surrogateescape") + b"\n")
    keys = ("code", "kind", "pci", "subcode")
    assert [{key: each[key] for key in keys if key in each} for each in planted()] == [
        {key: each[key] for key in keys if key in each} for each in parse(written)
    ]


def test_each_line_of_the_storm_is_independent():
    """A planted line reports the same kind and code without the lines before it."""
    codes = {(each["kind"], each["code"]) for each in planted()}
    lines = (DATA / "storm.kmsg").read_bytes().split(b"\n")
    parsed = (parse_kmsg(line) for line in lines)
    alone = (recognise(each.text) for each in parsed if each is not None and each.facility == 0)
    assert {(each.kind, each.code) for each in alone if each is not None} == codes
