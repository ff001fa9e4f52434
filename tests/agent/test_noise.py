"""Noise: whatever stands in a kernel log, nothing raises, and what was planted is what is found."""

import json
import os
import random
from pathlib import Path
from typing import Any, Final

import pytest

from agent.__main__ import run
from agent.faults import GpuMap, NodeIdentity
from agent.kernel_log import Line, parse_kmsg, parse_text
from agent.kmsg import KernelLog
from agent.reporter import Reporter, Sources
from agent.scanner import Scanner
from agent.xid import Sighting, recognise
from services.runtime.clock import SystemClock
from tests.agent.test_xid import FORMATS

DATA: Final = Path(__file__).parent / "data"
LINES: Final = int(os.environ.get("NAVARCH_FUZZ_LINES", "20000"))
SEED: Final = int(os.environ.get("NAVARCH_FUZZ_SEED", "1"))
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


class Outbox:
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


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_line_stops_the_agent(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Mangled lines go the whole way, from bytes to the fault that would be sent; nothing raises.

    NAVARCH_FUZZ_LINES and NAVARCH_FUZZ_SEED say how many and which.
    """
    caplog.set_level("CRITICAL")
    chance = random.Random(SEED)
    seeds = [text.encode() for text, _ in FORMATS]
    seeds += [b"3,77,99,-;" + text for text in seeds] + [b"", b"6,1,2,-;", b"usb 1-1: new device"]
    outbox = Outbox()
    reporter = Reporter(
        NodeIdentity("training", "n1", "0777c57c-3f80"),
        outbox,  # type: ignore[arg-type]
        SystemClock(),
        Sources(gpus=GpuMap, lines=lambda: True, job=lambda _: ""),
        any_facility=True,
    )
    log = KernelLog(
        tmp_path / "kmsg", after=-1, on_line=reporter.line, on_gap=lambda *_: reporter.due(0)
    )
    for number in range(LINES):
        line = mangled(chance, seeds)
        log._take(line)
        for parsed in (parse_text(line), parse_kmsg(line)):
            if parsed is not None:
                reporter.line(parsed._replace(sequence=number))
    assert outbox.count > LINES // 1000


def planted() -> list[dict[str, Any]]:
    """What was planted in the storm."""
    text = (DATA / "storm.faults.jsonl").read_text(encoding="ascii")
    return [json.loads(line) for line in text.splitlines()]


def told(sighting: Sighting, line: Line) -> dict[str, Any]:
    """Say what was found in the words of the list."""
    found = {
        "code": sighting.code,
        "kind": sighting.kind,
        "pci": sighting.pci,
        "sequence": line.sequence,
    }
    return found | ({"subcode": sighting.subcode} if sighting.subcode else {})


async def test_a_storm_hides_nothing_and_makes_nothing_up(tmp_path: Path):
    """Of a thousand good, bad and forged lines every planted fault is found, and nothing else."""
    (tmp_path / "kmsg").write_bytes((DATA / "storm.kmsg").read_bytes())
    scanner, found = Scanner(), []

    def take(line: Line) -> None:
        if (sighting := scanner.scan(line)) is not None:
            found.append(told(sighting, line))

    log = KernelLog(tmp_path / "kmsg", after=-1, on_line=take, on_gap=lambda *_: None)
    log.start()
    log.stop()
    assert found == planted()


def test_parse_finds_the_same(capsys: pytest.CaptureFixture[str]):
    """`navarch-agent parse` prints what the agent would see."""
    assert run(["parse", str(DATA / "storm.kmsg")]) == 0
    faults = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    keys = ("code", "kind", "pci", "sequence", "subcode")
    assert [{key: each[key] for key in keys if key in each} for each in faults] == planted()


def test_each_line_of_the_storm_stands_for_itself():
    """Without the lines before it a planted line still tells of the same kind and code."""
    codes = {(each["kind"], each["code"]) for each in planted()}
    lines = (DATA / "storm.kmsg").read_bytes().split(b"\n")
    parsed = (parse_kmsg(line) for line in lines)
    alone = (recognise(each.text) for each in parsed if each is not None and each.facility == 0)
    assert {(each.kind, each.code) for each in alone if each is not None} == codes
