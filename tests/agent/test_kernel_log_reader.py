"""Following a kernel log file: nothing is skipped, repeated or able to stop the follower."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from agent.observations import KernelLogLine
from agent.sources.kernel_log_reader import CHUNK_BYTES, KernelLogReader, PositionFile
from services.provisioner.providers.local_gpus import kmsg_record

LOG = "/dev/kmsg"


class Follower:
    """A follower whose lines can be waited for."""

    def __init__(self, path: Path, after: int = -1) -> None:
        self.lines: list[KernelLogLine] = []
        self.gaps: list[tuple[int, int]] = []
        self.log = KernelLogReader(path, after=after, on_line=self._line, on_gap=self._gap)
        self._came = asyncio.Event()

    def _line(self, line: KernelLogLine) -> None:
        self.lines.append(line)
        self._came.set()

    def _gap(self, count: int, sequence: int) -> None:
        self.gaps.append((count, sequence))

    async def have(self, count: int) -> list[str]:
        """Wait for `count` lines in all, and give their texts."""
        async with asyncio.timeout(60):
            while len(self.lines) < count:
                self._came.clear()
                await self._came.wait()
        return [line.text for line in self.lines]


@pytest.fixture
async def follow(tmp_path: Path) -> AsyncIterator[Callable[..., Follower]]:
    """Make followers of `kmsg`, which are stopped at the end."""
    made: list[Follower] = []

    def make(after: int = -1) -> Follower:
        follower = Follower(tmp_path / "kmsg", after)
        follower.log.start()
        made.append(follower)
        return follower

    yield make
    for each in made:
        each.log.stop()


def append(path: Path, data: bytes) -> None:
    """Write to the end of a file at once."""
    with path.open("ab") as file:
        file.write(data)


async def test_what_is_there_and_what_comes_is_read(
    tmp_path: Path, follow: Callable[..., Follower]
):
    """A file that does not exist yet is waited for; then each line is reported as it comes."""
    kmsg = tmp_path / "kmsg"
    early = follow()
    append(kmsg, kmsg_record(0, 0, "first"))
    assert await early.have(1) == ["first"]
    late = follow()
    append(kmsg, kmsg_record(1, 1, "second"))
    assert await early.have(2) == await late.have(2) == ["first", "second"]


async def test_a_record_in_pieces_is_one_line(tmp_path: Path, follow: Callable[..., Follower]):
    """A record counts when its newline is there, however it was written."""
    follower = follow()
    append(tmp_path / "kmsg", b"6,0,0,-;ha")
    append(tmp_path / "kmsg", b"lf\n SUBSYSTEM=pci\n6,1,0,-;whole\n")
    assert await follower.have(2) == ["half", "whole"]


async def test_bad_lines_are_counted_and_stop_nothing(
    tmp_path: Path, follow: Callable[..., Follower]
):
    """Garbage, NUL bytes and broken UTF-8 among good lines change nothing about the good ones."""
    follower = follow()
    bad = b"garbage\n\x00\x00\n\xff\xfe\xfd\n6,x,0,-;no\n6,1\n"
    append(tmp_path / "kmsg", kmsg_record(0, 0, "a") + bad + b"6,1,0,-;\xff\n")
    append(tmp_path / "kmsg", bad + kmsg_record(2, 0, "b"))
    assert await follower.have(3) == ["a", "\ufffd", "b"]
    assert follower.log.malformed == 10


async def test_only_what_is_new_is_reported(tmp_path: Path, follow: Callable[..., Follower]):
    """Lines after a sequence that was dealt with are reported, and a gap is counted."""
    records = b"".join(kmsg_record(n, n, str(n)) for n in (3, 4, 5, 9))
    append(tmp_path / "kmsg", records)
    follower = follow(after=4)
    assert await follower.have(2) == ["5", "9"]
    assert follower.gaps == [(3, 9)]
    assert follow(after=-1).gaps == [(3, 9)]


async def test_a_replaced_or_cut_file_is_read_on(tmp_path: Path, follow: Callable[..., Follower]):
    """Rotation by renaming and by truncating loses nothing that is written after."""
    kmsg = tmp_path / "kmsg"
    append(kmsg, kmsg_record(0, 0, "a"))
    follower = follow()
    append(tmp_path / "new", kmsg_record(1, 0, "b" * 90))
    (tmp_path / "new").replace(kmsg)
    assert await follower.have(2) == ["a", "b" * 90]
    kmsg.write_bytes(b"")
    append(kmsg, kmsg_record(2, 0, "c"))
    assert await follower.have(3) == ["a", "b" * 90, "c"]


async def test_a_long_log_is_read_whole(tmp_path: Path, follow: Callable[..., Follower]):
    """More than one read's worth is read in turns, in order."""
    count = 3 * CHUNK_BYTES // 100
    append(tmp_path / "kmsg", b"".join(kmsg_record(n, n, "x" * 90) for n in range(count)))
    follower = follow()
    await follower.have(count)
    assert [line.sequence for line in follower.lines] == list(range(count))


async def test_a_storm_is_read_whole(tmp_path: Path, follow: Callable[..., Follower]):
    """Where lines come faster than they should be woken for, they are read together, in order."""
    follower = follow()
    for number in range(300):
        append(tmp_path / "kmsg", kmsg_record(number, number, str(number)))
        await asyncio.sleep(0)
    assert await follower.have(300) == [str(number) for number in range(300)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, -1),
        (b"", -1),
        (b"{not json", -1),
        (b"\xff\xff", -1),
        (b'{"boot_id":"other","sequence":7}', -1),
        (b'{"boot_id":"boot","sequence":7}', 7),
    ],
)
def test_a_position_counts_in_its_own_boot(tmp_path: Path, content: bytes | None, expected: int):
    """A position that is missing, broken or of another boot means: from the beginning."""
    path = tmp_path / "kmsg.json"
    if content is not None:
        path.write_bytes(content)
    assert PositionFile(path, "boot", LOG).load() == expected


def test_a_position_only_goes_forward(tmp_path: Path):
    """A saved position is loaded; an older one does not overwrite it; no disk is no error."""
    file = PositionFile(tmp_path / "kmsg.json", "boot", LOG)
    file.save(5)
    file.save(3)
    assert PositionFile(tmp_path / "kmsg.json", "boot", LOG).load() == 5
    PositionFile(tmp_path / "missing" / "kmsg.json", "boot", LOG).save(5)


def test_a_position_is_of_one_log(tmp_path: Path):
    """A drill's file has sequences of its own: it is read from its beginning, and back."""
    PositionFile(tmp_path / "kmsg.json", "boot", LOG).save(1705)
    drill = PositionFile(tmp_path / "kmsg.json", "boot", "/tmp/drill")
    assert drill.load() == -1
    drill.save(0)
    assert PositionFile(tmp_path / "kmsg.json", "boot", "/tmp/drill").load() == 0
    assert PositionFile(tmp_path / "kmsg.json", "boot", LOG).load() == -1
