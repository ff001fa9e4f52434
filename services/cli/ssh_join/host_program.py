"""Installs the agent on a machine that has a token, joins it and starts the agent.

`navarch serve` hands this file out, and the printed line runs it there. So it needs nothing but an
old Python's standard library, and its last line is the call that the server adds.
"""

import io
import os
import subprocess
import sys
import tarfile
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

WHEELS = "/agent.tar"
STEPS = ("install.sh", "join.sh", "start.sh")
"""What the archive has beside the wheels, in order."""
JOINED = "/var/lib/navarch-agent/nats.creds"
SETTINGS = "/etc/navarch/agent.env"


def run(word: str, token: dict[str, Any], connection: HTTPConnection) -> None:
    """Install, join and start; end the program with a sentence where that fails.

    `word`: the token as it was given. `connection`: to the fleet, whose certificate was checked.
    """
    if problem := why_not_here(token):
        sys.exit(f"navarch: {problem}")
    connection.request("GET", WHEELS, headers={"Authorization": f"Bearer {bearer_of(token)}"})
    answer = connection.getresponse()
    data = answer.read()
    if answer.status != 200:  # noqa: PLR2004 - no constants of a library are to be had on an old Python
        sys.exit("navarch: " + data.decode("utf-8", "replace")[:500])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        scripts = [read_member(archive, each) for each in STEPS]
    inputs = (data, word.encode(), b"")
    environment = {**os.environ, "NAVARCH_PYTHON": sys.executable}
    for name, script, given in zip(STEPS, scripts, inputs):  # noqa: B905 - of Python 3.10
        done = subprocess.run(
            ["/bin/bash", "-c", script], input=given, check=False, env=environment
        )
        if done.returncode:
            sys.exit(f"navarch: {name} failed, see above; the same line goes on from here")


def why_not_here(token: dict[str, Any]) -> str:
    """Return why the agent is not installed on this machine; empty: it is."""
    if sys.version_info < (3, 11):  # noqa: UP036 - the machine's Python is what it is
        return (
            f"this is Python {sys.version.split()[0]}, and the agent needs 3.11: install "
            "python3.11 and python3.11-venv, and run the line with python3.11"
        )
    if os.geteuid() != 0:
        return "run this line as root"
    if not Path(JOINED).exists():
        return ""
    settings = Path(SETTINGS).read_text(encoding="utf-8") if Path(SETTINGS).exists() else ""
    wanted = {f"NAVARCH_POOL={token['pool']}", f"NAVARCH_NODE={token['node']}"}
    if wanted <= set(settings.splitlines()):
        return ""
    return "this machine is another node already: `navarch-agent leave`, then run this line again"


def bearer_of(token: dict[str, Any]) -> str:
    """Return what shows the server that this machine has the token."""
    return f"{token['pool']}/{token['node']}/{token['secret']}"


def read_member(archive: tarfile.TarFile, name: str) -> bytes:
    """Return a file of the archive."""
    found = archive.extractfile(name)
    if found is None:
        sys.exit(f"navarch: the archive has no {name}")
    return found.read()
