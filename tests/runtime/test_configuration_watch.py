"""The change of a configuration's file is noticed when it is whole, however it is made."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.runtime import configuration_watch
from services.runtime.configuration_watch import ConfigurationWatch, entries_of

SECONDS_MAX = 20.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests wait less for a change to be over."""
    monkeypatch.setattr(configuration_watch, "QUIET_SECONDS", 0.05)


@asynccontextmanager
async def watched(*files: Path) -> AsyncIterator[asyncio.Queue[str]]:
    """Yield a queue of the first file's content at each change that is noticed."""
    found: asyncio.Queue[str] = asyncio.Queue()
    watch = ConfigurationWatch(files, lambda: found.put_nowait(files[0].read_text()))
    running = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(SECONDS_MAX):
            yield found
    finally:
        running.cancel()
        await asyncio.wait({running})
        if not running.cancelled():
            running.result()


def written(file: Path) -> None:
    """Write the file in place, as `cat > file` does."""
    file.write_text("b")


def renamed(file: Path) -> None:
    """Rename a draft to the file, as editors do, and whatever writes atomically."""
    draft = file.with_suffix(".new")
    draft.write_text("b")
    draft.replace(file)


def removed_and_made(file: Path) -> None:
    """Remove the file and write it again, as some editors and copies do."""
    file.unlink()
    file.write_text("b")


def through_a_backup(file: Path) -> None:
    """Rename the old file and write the new one, as vim does with `backup`."""
    file.rename(file.with_suffix(".bak"))
    file.write_text("b")


@pytest.mark.parametrize("change", [written, renamed, removed_and_made, through_a_backup])
async def test_a_change_is_noticed_and_the_next_one_too(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    """Another file in the directory, and a file that is written as it was, are no change."""
    file = tmp_path / "navarch.yaml"
    file.write_text("a")
    async with watched(file) as found:
        (tmp_path / "other.yaml").write_text("x")
        file.write_text("a")
        change(file)
        assert await found.get() == "b"
        file.write_text("c")
        assert await found.get() == "c"
        assert found.empty()


async def test_a_volume_of_kubernetes_swaps_a_link(tmp_path: Path) -> None:
    """`navarch.yaml` is a link through `..data`, which is replaced by a rename; twice."""
    volume = tmp_path / "volume"
    for number, text in enumerate("abc"):
        (volume / f"..{number}").mkdir(parents=True)
        (volume / f"..{number}" / "navarch.yaml").write_text(text)
    (volume / "..data").symlink_to("..0")
    (volume / "navarch.yaml").symlink_to("..data/navarch.yaml")
    outside = tmp_path / "navarch.yaml"
    outside.symlink_to(volume / "navarch.yaml")
    async with watched(outside) as found:
        for number in (1, 2):
            (volume / "..data_tmp").symlink_to(f"..{number}")
            (volume / "..data_tmp").rename(volume / "..data")
            assert await found.get() == "abc"[number]
        outside.unlink()
        outside.symlink_to("volume/..0/navarch.yaml")
        assert await found.get() == "a"


async def test_a_file_that_is_half_written_changes_nothing(tmp_path: Path) -> None:
    """Not even when something else in its directory changes meanwhile."""
    file, other = tmp_path / "navarch.yaml", tmp_path / "other.yaml"
    for each in (file, other):
        each.write_text("a")
    async with watched(file) as found, watched(other) as others:
        with file.open("w", encoding="utf-8", buffering=1) as writing:
            writing.write("half\n")
            other.write_text("b")
            assert await others.get() == "b"
            assert found.empty()
            writing.write("whole\n")
        assert await found.get() == "half\nwhole\n"


async def test_a_file_mounted_by_itself_is_watched(tmp_path: Path) -> None:
    """A mounted file's directory reports nothing: the file is written through another name."""
    (tmp_path / "host").mkdir()
    (tmp_path / "container").mkdir()
    file, mounted = tmp_path / "host" / "navarch.yaml", tmp_path / "container" / "navarch.yaml"
    file.write_text("a")
    os.link(file, mounted)
    async with watched(mounted) as found:
        file.write_text("b")
        assert await found.get() == "b"


async def test_without_notifications_the_file_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is still read when the kernel's watches are used up; the log says so."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(configuration_watch, "Inotify", refuse)
    monkeypatch.setattr(configuration_watch, "LOOK_SECONDS", 0.01)
    file = tmp_path / "navarch.yaml"
    file.write_text("a")
    async with watched(file) as found:
        file.write_text("b")
        assert await found.get() == "b"


def test_links_that_lead_nowhere_end(tmp_path: Path) -> None:
    """A link to itself, and one through a directory that is not there."""
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    assert set(entries_of(circle)) == {(tmp_path, "circle")}
    away = tmp_path / "away"
    away.symlink_to("../nowhere/navarch.yaml")
    assert (tmp_path.parent / "nowhere", "navarch.yaml") in set(entries_of(away))
