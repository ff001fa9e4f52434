"""`navarch config apply`: what it shows, what it changes, and what it leaves as it was."""

import fcntl
from pathlib import Path

import pytest

from services.cli.configuration_change import replace_file, require_running
from services.cli.fleet_discovery import LOCK_FILE
from services.primitives.errors import NavarchError
from services.runtime.served_process import process_facts
from tests.cli.test_serve import READY, navarch, served

BASE = """\
data_dir: data
providers: {local: {type: local, gpu_count: 0}}
pools:
  training: {provider: local, instance_type: local, min_nodes: 0, max_nodes: 2}
"""


def text_id(file: Path) -> str:
    """Return what a process that runs with a file says of its text."""
    return process_facts(file)["configuration"]


@pytest.mark.slow
async def test_a_file_is_shown_and_put_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is put in force by `serve` of this host; other processes to reload are named."""
    place = tmp_path / "fleet"
    async with served(place, BASE.removeprefix("data_dir: data\n")) as fleet:
        await fleet.says(READY)
        config, new = place / "navarch.yaml", place / "new.yaml"
        config.chmod(0o640)

        async def apply(text: str, *options: str) -> tuple[int, str]:
            new.write_text(text)
            return await navarch("config", "apply", str(new), *options, place=place)

        changed = BASE.replace("max_nodes: 2", "max_nodes: 3") + "spend_cap: 5\n"
        status, said = await apply(changed)
        assert status == 1
        assert "  max_nodes: 2 -> 3\nother settings: 1\n  spend_cap: 0.0 -> 5.0\n" in said
        assert "give --yes, or `navarch config diff`" in said
        status, said = await apply(changed.replace("3", "three"), "--yes")
        assert (status, "new.yaml" in said) == (1, True)
        for key, other in (("data_dir", "data_dir: other"), ("fleet", "data_dir: data\nfleet: b")):
            status, said = await apply(changed.replace("data_dir: data", other), "--yes")
            assert (status, f"{key}: goes from" in said) == (1, True)
        monkeypatch.setenv("ONLY_HERE", "x")
        hook = 'alerts: [{type: webhook, url: "http://h/${ONLY_HERE}"}]\n'
        status, said = await apply(BASE + hook, "--yes")
        assert (status, "navarch serve refuses it" in said) == (1, True)
        assert config.read_text() == BASE
        await fleet.says("every process runs with the configuration")

        url = fleet.file()["nats_url"]
        status, said = await apply(changed, "--nats-url", url)
        assert status == 3
        pids = fleet.file()["pids"]
        for service in ("health-monitor", "metrics", "notifier", "pool-manager", "provisioner"):
            assert str(pids[service]) in said.partition(f"\n{service} ")[2].partition("\n")[0]
        assert config.read_text() == BASE

        status, said = await apply(changed, "--yes")
        assert (status, said.splitlines()[-1]) == (
            0,
            f"every process runs with {config} (text {text_id(config)})",
        )
        assert (config.read_text(), config.stat().st_mode & 0o777) == (changed, 0o640)
        status, said = await apply(changed, "--yes")
        assert (status, said.splitlines()[-1]) == (
            0,
            f"{new} is in force already (text {text_id(new)})",
        )
        status, said = await apply(changed, "--nats-url", url)
        assert (status, said.splitlines()[-1]) == (
            0,
            f"every process that answers runs with {new} (text {text_id(new)})",
        )
        fleet.process.terminate()
        await fleet.rest()


def test_only_the_file_of_the_fleet_is_replaced(tmp_path: Path) -> None:
    """Not a link, and not by a file whose relative paths are meant from elsewhere."""
    target, new = tmp_path / "navarch.yaml", tmp_path / "new.yaml"
    target.write_text("a")
    new.write_text("b")
    assert replace_file(target, target) is None
    elsewhere = tmp_path / "other" / "new.yaml"
    with pytest.raises(NavarchError, match=r"put .* in that directory first"):
        replace_file(target, elsewhere)
    link = tmp_path / "link.yaml"
    link.symlink_to(target)
    with pytest.raises(NavarchError, match="which is a link"):
        replace_file(link, new)
    assert target.read_text() == "a"
    assert replace_file(target, new) == b"a"
    assert target.read_text() == "b"


def test_no_signal_is_sent_where_serve_has_ended(tmp_path: Path) -> None:
    """The process of its number may be another one: the lock of the directory counts."""
    with (tmp_path / LOCK_FILE).open("w") as lock:
        with pytest.raises(NavarchError, match="no navarch serve runs"):
            require_running(tmp_path)
        fcntl.flock(lock, fcntl.LOCK_EX)
        require_running(tmp_path)
