"""`navarch slurm resume` and `suspend`, and the scripts that Slurm runs them by."""

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schemas.pool_records import PoolRecord
from schemas.settings import PoolSpec
from services.cli.commands import slurm_power_commands
from services.cli.commands.slurm_power_commands import batches, commands, names_by_pool

SCRIPTS = Path(__file__).resolve().parents[2] / "deploy/slurm"


def pool(name: str, workload_names: str) -> PoolRecord:
    """A pool with these names."""
    spec = PoolSpec(
        provider="p", instance_type="t", min_nodes=0, max_nodes=9, workload_names=workload_names
    )
    return PoolRecord(name=name, spec=spec, desired=0)


def test_each_name_is_requested_of_its_pool() -> None:
    """Slurm passes the nodes of all its partitions in one list."""
    pools = [pool("training", "train-[01-02]"), pool("dev", "dev-1"), pool("plain", "")]
    found = names_by_pool(["dev-1", "train-02", "login-1", "train-1"], pools)
    assert found == ({"dev": ["dev-1"], "training": ["train-02"]}, ["login-1", "train-1"])


def test_many_names_are_several_requests() -> None:
    """A pool's setting has 2,000; those that it had before can still be suspended."""
    names = [f"gpu-{number}" for number in range(5_000)]
    found = list(batches({"training": names, "dev": ["dev-1"]}))

    assert [2_000, 2_000, 1_000, 1] == [len(each) for _, each in found]
    assert ["training"] * 3 + ["dev"] == [each for each, _ in found]
    assert [*names, "dev-1"] == [each for _, some in found for each in some]


@pytest.mark.parametrize("names", ["train-[3-1]", "train-[1", "[", ","])
def test_what_is_no_list_of_names_is_refused(names: str) -> None:
    """The refusal comes before the bus is looked for."""
    assert CliRunner().invoke(commands, ["resume", names]).exit_code == 2


def test_names_are_printed_where_no_bus_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script sets them DOWN; the log says why."""
    monkeypatch.setattr(slurm_power_commands, "BUS_SECONDS_MAX", {"resume": 0.0})
    url = ("--nats-url", "nats://127.0.0.1:1")
    result = CliRunner().invoke(commands, ["resume", "train-[1-2]", *url])
    assert (result.exit_code, result.stdout) == (1, "train-1,train-2\n")
    assert "resume of train-1, train-2 was not requested" in result.stderr


@pytest.mark.parametrize(
    ("script", "does", "code", "updated"),
    [
        ("resume.sh", "exit 0", 0, ""),
        ("resume.sh", "echo train-2; echo 'refused: why' >&2; exit 1", 1, "train-2"),
        ("resume.sh", "exit 127", 1, "train-[1-2]"),
        ("suspend.sh", "exit 0", 0, ""),
        ("suspend.sh", "echo train-2; exit 1", 1, ""),
    ],
)
def test_scripts(tmp_path: Path, script: str, does: str, code: int, updated: str) -> None:
    """Only what was not requested is set DOWN and powered down, with the log's name."""
    for name, text in (
        ("navarch", f'echo "$@" > {tmp_path}/asked; {does}'),
        ("scontrol", f'echo "$@" >> {tmp_path}/updates'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    log = tmp_path / "log"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "NAVARCH": str(tmp_path / "navarch")}
    environment |= {"NAVARCH_SLURM_LOG": str(log)}
    done = subprocess.run(
        [SCRIPTS / script, "train-[1-2]"], env=environment, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, b"")
    assert (tmp_path / "asked").read_text() == f"slurm {script[:-3]} train-[1-2]\n"
    assert ("refused: why" in log.read_text()) == ("why" in does)
    updates = tmp_path / "updates"
    found = updates.read_text().splitlines() if updates.exists() else []
    assert [each.partition(" Reason=")[0] for each in found] == (
        [f"update NodeName={updated} State={state}" for state in ("DOWN", "POWER_DOWN_FORCE")]
        if updated
        else []
    )
