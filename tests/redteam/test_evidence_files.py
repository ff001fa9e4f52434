"""Evidence is written where its operator says, and over no file that another user points to."""

import os
import tarfile
from pathlib import Path

import msgspec
import pytest

from services.cli.commands import evidence_command
from services.cli.commands.evidence_command import write_files
from services.primitives.errors import NavarchError
from tests.cli.test_evidence import BUNDLE

KEYS = "ssh-ed25519 AAAA operator\n"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Provide a file of the operator that others would like to write."""
    file = tmp_path / "authorized_keys"
    file.write_text(KEYS)
    return file


def place_of(tmp_path: Path) -> Path:
    """Return a folder that others may write to, as /tmp."""
    place = tmp_path / "shared"
    place.mkdir(exist_ok=True)
    return place


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path, own: Path) -> None:
    """The folder has a name that is known in advance: the node and the saga."""
    name = write_files(tmp_path / "first", BUNDLE).name
    (tmp_path / "target").mkdir()
    (place_of(tmp_path) / name).symlink_to(tmp_path / "target")
    with pytest.raises(NavarchError, match="is a link"):
        write_files(place_of(tmp_path), BUNDLE)
    assert list((tmp_path / "target").iterdir()) == []
    assert own.read_text() == KEYS


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner could put links there while the files are written."""
    write_files(tmp_path, BUNDLE)
    monkeypatch.setattr(evidence_command.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(NavarchError, match="another user's"):
        write_files(tmp_path, BUNDLE)


def test_links_in_place_of_files_are_replaced(tmp_path: Path, own: Path) -> None:
    """The file that a link names is left as it is, and so is what a draft's name leads to."""
    where = write_files(place_of(tmp_path), BUNDLE)
    names = [each.name for each in where.iterdir()]
    for each in names:
        (where / each).unlink()
        (where / each).symlink_to(own)
        (where / f".{each}.new").symlink_to(own)
    write_files(place_of(tmp_path), BUNDLE)
    assert own.read_text() == KEYS
    assert not [each for each in where.iterdir() if each.is_symlink()]
    archive = place_of(tmp_path) / "ticket.tar.gz"
    archive.symlink_to(own)
    (place_of(tmp_path) / ".ticket.tar.gz.new").symlink_to(own)
    write_files(archive, BUNDLE)
    assert own.read_text() == KEYS
    assert not archive.is_symlink()


def test_a_link_that_is_put_there_while_files_are_written_is_not_followed(
    tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft's name is known in advance, and is free for a moment."""
    opens = os.open

    def put_first(path: Path, flags: int, mode: int) -> int:
        path.symlink_to(own)
        return opens(path, flags, mode)

    monkeypatch.setattr(os, "open", put_first)
    with pytest.raises(NavarchError, match="cannot write"):
        write_files(place_of(tmp_path), BUNDLE)
    assert own.read_text() == KEYS


@pytest.mark.parametrize("name", ["../../etc", "/etc/cron.d", "a/b", ".", "", "n1\n", "-rf"])
@pytest.mark.parametrize("field", ["node", "saga"])
def test_no_name_of_a_bundle_leads_elsewhere(tmp_path: Path, name: str, field: str) -> None:
    """A service or a store that another controls answers with it; an archive has no such member."""
    if field == "saga" and not name:
        return
    bundle = msgspec.structs.replace(BUNDLE, **{field: name})
    for place in (tmp_path / "x", tmp_path / "x" / "t.tar.gz"):
        try:
            write_files(place, bundle)
        except (NavarchError, ValueError):
            continue
        if place.is_file():
            with tarfile.open(place) as saved:
                members = saved.getnames()
            assert all(each.startswith("evidence-") and ".." not in each for each in members)
        found = {each.parent.parent for each in tmp_path.rglob("README.txt")}
        assert found <= {tmp_path / "x"}
