"""Every line of docs/compose.md, in its order, with one server and with three: a newcomer's way."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.real.compose_project import (
    BASE,
    FILES_MAX,
    IMAGE,
    ROOT,
    SERVICES,
    compose_command,
    nodes,
    run,
    two_nodes,
    works,
)
from tests.real.compose_project import missing as missing_docker
from tests.support.inprocess import eventually

# The first run builds the image.
pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]
PAGE: Final = ROOT / "docs" / "compose.md"
NATS: Final = shutil.which("nats") or shutil.which("nats", path=str(Path.home() / "go/bin"))
LINE_SECONDS_MAX: Final = 900.0
THREE: Final = "echo COMPOSE_FILE="
"""The line that three servers begin with, and one does without."""


def sections() -> dict[str, list[str]]:
    """Return the commands below each heading of the page."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        blocks = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        found[heading] = [line for block in blocks for line in block.splitlines()]
    assert sum(map(len, found.values())) > 18
    return found


class Shell:
    """Runs one shell after the other in the folder `compose` of a copy of the checkout."""

    def __init__(self, folder: Path, servers: int) -> None:
        self.folder, self.servers = folder, servers
        for each in ("compose", "deploy/prometheus", "deploy/grafana"):
            shutil.copytree(ROOT / each, folder / each)
        files = ["compose.yaml", "../tests/real/compose-offline.yaml"]
        if servers > 1:
            files.insert(1, "cluster.yaml")
            files.append("../tests/real/compose-offline-cluster.yaml")
        (folder / "tests/real").mkdir(parents=True)
        for each in (ROOT / "tests/real").glob("compose-offline*.yaml"):
            shutil.copy(each, folder / "tests/real")
        ports = {f"NAVARCH_{each}_PORT": "0" for each in ("NATS", "METRICS", "GATEWAY")}
        self.variables = (
            os.environ
            | ports
            | {
                "HOME": str(folder),
                # `nats` looks for the home in the list of users, whatever HOME is.
                "XDG_CONFIG_HOME": str(folder / ".config"),
                "PATH": f"{Path(NATS).parent if NATS else ''}:{os.environ['PATH']}",
                "DOCKER_CONFIG": os.environ.get("DOCKER_CONFIG", str(Path.home() / ".docker")),
                "NAVARCH_BASE": BASE,
                "NAVARCH_EXTRAS": "all",
                "NAVARCH_IMAGE": IMAGE,
                "NAVARCH_NATS_FILES": str(FILES_MAX),
                # What the page writes into .env, with what replaces the official server's image.
                "COMPOSE_FILE": ":".join(files),
                "COMPOSE_PROJECT_NAME": f"navarch-page-{servers}-{os.getpid()}",
            }
        )

    def __call__(self, lines: str) -> str:
        """Run lines as a newcomer types them; the first that fails ends them."""
        compose = " ".join(compose_command())
        done = subprocess.run(
            ("bash", "-euo", "pipefail", "-c", lines.replace("docker compose", compose)),
            capture_output=True,
            check=False,
            text=True,
            timeout=LINE_SECONDS_MAX,
            cwd=self.folder / "compose",
            env=self.variables,
        )
        assert done.returncode == 0, f"{lines}: {done.stdout}{done.stderr}"
        return done.stdout

    def listed(self) -> str:
        """Return what an operator lists, as JSON."""
        return self("docker compose run --rm -T navarch list -o json")


@pytest.fixture(params=[1, 3])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    """Provide a shell on a fresh machine, as far as Compose is concerned."""
    if reason := missing_docker():
        pytest.skip(reason)
    if not works("docker", "compose", "version"):
        pytest.skip("no docker compose 2 here: tests/real/install-compose.sh builds it")
    found = Shell(tmp_path, request.param)
    # On a network where containers resolve no names a build fails: the host's is used.
    run(
        *("docker", "build", "-q", "--network", "host", "--build-arg", f"BASE={BASE}"),
        *("--build-arg", "EXTRAS=all", "-t", IMAGE, "-f", str(ROOT / "compose/Dockerfile")),
        str(ROOT),
        seconds=1800,
    )
    try:
        yield found
    finally:
        found("docker compose down -v -t 1")


async def test_a_newcomer_follows_the_page(shell: Shell) -> None:
    """The fleet starts, repairs an XID, takes an edited file, is upgraded, and is stopped."""
    page = sections()
    three = [each for each in page["Start it"] if each.startswith(THREE)]
    assert len(three) == 1
    for line in page["Start it"]:
        if line not in (*three, "cd compose"):
            # The image was built above, on a network that every engine has.
            shell(line.replace("up --build", "up --no-build"))
    if shell.servers > 1:
        assert shell("docker compose ps -q nats-3")
    old, _ = await two_nodes(shell.listed)
    shell("\n".join(page["Break a GPU"]))
    await two_nodes(shell.listed, without=old)

    shell("\n".join(page["Change the configuration"][:-1]))

    async def is_in_force() -> bool:
        try:
            shell(page["Change the configuration"][-1])
        except AssertionError:
            return False
        return True

    await eventually(is_in_force, within_seconds=120.0, every=1.0)
    assert " 5 " in shell("docker compose run --rm -T navarch status")

    context, *lines = page["The nats command"][:2], *page["The nats command"][2:]
    shell("\n".join(context))
    if NATS is not None:
        shell("\n".join(lines))

        async def three_nodes() -> bool:
            return len(nodes(shell.listed())) == 3

        await eventually(three_nodes, within_seconds=300.0, every=1.0)
    shell("\n".join(page["Renew the operator's credentials"]))
    assert "navarch_" in shell(
        "docker compose exec -T metrics python -c 'import urllib.request as r; "
        'print(r.urlopen("http://127.0.0.1:8080/metrics").read().decode()[:9999])\''
    )
    build, *steps = page["Upgrade and stop"]
    assert build == "docker compose build"
    for line in steps[:-1]:
        shell(line)
    await eventually(lambda: all_listed(shell), within_seconds=300.0, every=1.0)
    logs = shell(f"docker compose logs --no-color nats {' '.join(SERVICES)}")
    repeated = re.findall(r"TLS route handshake error|never retrieved", logs)
    assert len(repeated) < 10
    shell(steps[-1])
    assert shell("docker compose ps -q") == ""


async def all_listed(shell: Shell) -> bool:
    """Return whether the nodes that were there before are in service again."""
    try:
        return len(nodes(shell.listed())) >= 2
    except AssertionError:
        return False
