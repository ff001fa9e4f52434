"""`navarch init`: writes the configuration of a first fleet, of machines that exist."""

import socket
from pathlib import Path
from typing import Annotated, Final

import typer

from schemas.names import InvalidNameError, pool_name, token
from services.cli import console
from services.primitives.atomic_files import write_secret
from services.primitives.errors import NavarchError
from services.settings.plain_values import plain_problem

PORT: Final = 4222
INSTALL_PORT: Final = 4223
ANYWHERE: Final = ("192.0.2.1", 9)
"""An address of documentation: connecting a datagram socket to it sends nothing."""
TEXT: Final = """\
# A fleet of machines that exist. Written by `navarch init`; docs/first-fleet.md explains it.
fleet: {fleet}
agent:
  bus_url: tls://{host}:{port}    # where machines reach this one: open that port to them alone
  install_port: {install}           # and this one: who has a token is given the agent there
providers:
  machines: {{type: enrolled}}    # machines join by `navarch join`; none is launched or ended
pools:
  {pool}:
    provider: machines
    nodes: enrolled
    min_nodes: 0                 # with fewer than these, the pool is short of nodes
    max_nodes: 1000
    gpu_count: {gpus}                 # GPUs that each machine must have; 0: as many as it has
    mode: observe                # says what it would do and does nothing; act: it does it
    # Once it acts:
    drain: wait                  # an unhealthy machine's work may end by itself
    budget: {{max_unavailable: 1, max_replacements: 1, window: 24h}}   # one disruption a day
alerts:
  - type: log                    # also slack, email, pagerduty …: docs/alerts.md
"""


def init(
    host: Annotated[
        str,
        typer.Option("--host", help="Name or address by which machines reach this one."),
    ] = "",
    pool: Annotated[str, typer.Option("--pool", help="Name of the pool.")] = "gpu",
    fleet: Annotated[str, typer.Option("--fleet", help="Name of the fleet.")] = "first",
    gpus: Annotated[
        int, typer.Option("--gpus", min=0, max=64, help="GPUs of each machine; 0: any.")
    ] = 0,
    file: Annotated[Path, typer.Option("--file", help="Where it is written.")] = Path(
        "navarch.yaml"
    ),
) -> None:
    """Write the configuration of a first fleet.

    The machines exist, and join it with `navarch join`. It is observed only, and its bus is
    encrypted and asks for credentials.
    """
    text = configuration(host or own_address(), pool, fleet, gpus)
    if file.exists():
        raise NavarchError(f"{file} exists: name another with --file, or remove it first")
    try:
        write_secret(file, text)
    except OSError as error:
        raise NavarchError(f"{file} cannot be written: {error.strerror}") from error
    console.write(f"wrote {file}; next: navarch serve --config {file}")
    console.write("then, in another terminal: navarch join --print NAME")


def configuration(host: str, pool: str, fleet: str, gpus: int) -> str:
    """Return the configuration; NavarchError where a value cannot be in it. Pure."""
    try:
        pool_name(pool)
        token(fleet, "fleet")
    except InvalidNameError as error:
        raise NavarchError(str(error)) from error
    if ":" in host:
        raise NavarchError(f"--host {host}: write a name or an IPv4 address, without a port")
    if problem := plain_problem(host):
        raise NavarchError(f"--host {host}: {problem}")
    ports = {"port": PORT, "install": INSTALL_PORT}
    return TEXT.format(fleet=fleet, host=host, pool=pool, gpus=gpus, **ports)


def own_address() -> str:
    """Return the address from which this machine reaches others; its name where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(ANYWHERE)
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()
