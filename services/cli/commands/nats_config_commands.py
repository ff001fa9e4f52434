"""`navarch nats-config`: writes the server's configuration, certificates and credentials."""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from schemas.duration import parse_duration
from schemas.names import pool_name
from schemas.permissions import POD, USER_ROLES
from services.bus.nats.file_limits import FILES_MAX, FILES_MIN
from services.bus.nats.nats_accounts import credentials, new_seed
from services.cli import bus_users, console
from services.cli.command_options import BUS, BusDirectoryOption, Config, NatsUrl, command_group
from services.cli.commands.rotate_command import rotate
from services.cli.fleet_discovery import find_bus, settings_of
from services.cli.nats_config_files import BusDirectory, bus_user, role_keys
from services.operator_text.quantities import age_since
from services.primitives.atomic_files import write_secret
from services.primitives.errors import NavarchError

commands = command_group("Write a server's configuration, certificates and credentials.")
users = typer.Typer(help="Who may use the fleet: people and nodes.", no_args_is_help=True)
USER_HEADERS: Final = ("name", "role", "state", "age", "public key", "until (utc)")


def write_pods(directory: Path, pool: str, at: datetime, valid: timedelta) -> Path:
    """Write them, or later ones, which do not end the ones before; return the file.

    They permit only to ask for those; the provisioner asks the pods' cluster which node asks.
    """
    bus = BusDirectory(directory)
    keys = role_keys(POD, bus.keys())
    seed = new_seed("user")
    user = bus_user(f"{pool_name(pool)}/*", POD, keys, seed, at, valid)
    made = credentials(
        f"{POD} {user.name}",
        keys,
        at,
        tags=(f"pool:{pool}",),
        user_seed=seed,
        until=user.expires_at,
    )
    bus.write_users(bus_users.add_node(bus.users(), user), at)
    file = bus.credentials_file(user)
    write_secret(file, made)
    return file


commands.add_typer(users, name="user")

Valid = Annotated[
    str, typer.Option("--valid", metavar="90d", help="How long the credentials are valid.")
]
OpenFiles = Annotated[
    int | None,
    typer.Option(
        "--files",
        min=FILES_MIN,
        max=FILES_MAX,
        help="How many files nats-server may open; without it as before, or 65536.",
    ),
]
commands.command("rotate")(rotate)


@commands.command("write")
def write(
    directory: BusDirectoryOption = BUS,
    fleet: Annotated[str, typer.Option("--fleet", help="The fleet's name.")] = "default",
    store: Annotated[str, typer.Option("--store", help="JetStream directory.")] = "/data",
    listen: Annotated[str, typer.Option("--listen", help="Client address.")] = "0.0.0.0:4222",
    http: Annotated[str, typer.Option("--http", help="Monitoring address.")] = "127.0.0.1:8222",
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="Name or address by which clients reach the server; beside those of nats.url.",
        ),
    ] = None,
    server_dir: Annotated[
        str, typer.Option("--server-dir", help="Where the server finds this directory.")
    ] = "",
    servers: Annotated[
        list[str] | None,
        typer.Option(
            "--server",
            metavar="NAME[=HOST[:PORT]]",
            help="A server of a cluster, where the others reach it; for each of three or five.",
        ),
    ] = None,
    no_tls: Annotated[
        bool, typer.Option("--no-tls", help="Without encryption, on a private network.")
    ] = False,
    open_files: OpenFiles = None,
    config: Config = None,
) -> None:
    """Write what the server and the services need."""
    from services.cli import nats_config_files as files  # noqa: PLC0415
    from services.cli.cluster_servers import cluster_servers  # noqa: PLC0415

    hosts: list[str] = []
    several = cluster_servers(servers or ())
    if not no_tls:
        settings = settings_of(config)
        named = [*(host or ()), *(each.host for each in several)]
        hosts = files.server_hosts(named, (settings.nats.url, settings.agent.bus_url))
    for file in files.write(
        directory,
        fleet,
        datetime.now(UTC),
        store=store,
        listen=listen,
        http=http,
        hosts=hosts,
        server_directory=server_dir,
        servers=several,
        files=open_files or 0,
    ):
        console.write(f"wrote {file}")
    if no_tls:
        console.write(
            "Without TLS: credentials are not sent in plain text, but everything else is, and "
            "anyone on the network can change it. Use it on a private network only."
        )
    else:
        console.write(f"The server's certificate is for {', '.join(hosts)}; more with --host.")
        _warn_without_tls([directory / each.conf for each in several] or [directory / files.CONF])
    if several:
        console.write(
            f"Each server gets {files.ACCOUNTS}, its own nats-NAME.conf, tls/ and of routes/ "
            "ca.pem and NAME.pem alone."
        )
    console.write(f"For the services' configuration: {directory / files.CLIENTS_FILE}")


def _warn_without_tls(files: Iterable[Path]) -> None:
    """Name the configurations of servers that are from a run without TLS."""
    for file in files:
        if "\ntls {" not in file.read_text(encoding="utf-8"):
            console.write(
                f"{file} has no tls section and was left as it is: remove it and run this again, "
                "or add the section"
            )


@commands.command("push")
def push(
    directory: BusDirectoryOption = BUS, nats_url: NatsUrl = "", config: Config = None
) -> None:
    """Give a running server the permissions and revocations."""
    from services.cli.key_rotation import push as push_accounts  # noqa: PLC0415

    nats = find_bus(nats_url, config)
    pushed = asyncio.run(push_accounts(directory, nats, datetime.now(UTC)))
    console.write(f"pushed: {', '.join(pushed) or 'nothing, the server has all of it'}")


@commands.command("certificate")
def certificate(
    name: Annotated[str, typer.Argument(help="Who uses it.", show_default=False)],
    directory: BusDirectoryOption = BUS,
) -> None:
    """Write a client's certificate and its key."""
    from services.cli.bus_certificates import BusCertificates  # noqa: PLC0415

    file = BusCertificates(directory).write_client(name, datetime.now(UTC))
    console.write(f"wrote {file}, the certificate and its key: name it in nats.tls_cert_file")


@commands.command("agent")
def agent(
    node: Annotated[str, typer.Argument(metavar="POOL/NODE", help="The node.")],
    valid: Valid = "90d",
    directory: BusDirectoryOption = BUS,
) -> None:
    """Write the credentials of a node that no provider launches."""
    from services.cli.nats_config_files import write_agent  # noqa: PLC0415

    pool, _, name = node.partition("/")
    now = datetime.now(UTC)
    span, until = _until(valid, now)
    console.write(f"wrote {write_agent(directory, pool, name, now, span)}")
    console.write(
        f"Valid until {until:%Y-%m-%d %H:%M} UTC: run this again before, and copy the file to "
        f"{name}. If the machine leaves: navarch nats-config user revoke {node}"
    )


@commands.command("pods")
def pods(
    pool: Annotated[str, typer.Argument(metavar="POOL", help="The pool.")],
    valid: Valid = "365d",
    directory: BusDirectoryOption = BUS,
) -> None:
    """Write the credentials with which agents in pods enroll."""
    from services.cli.commands.nats_config_commands import write_pods  # noqa: PLC0415

    now = datetime.now(UTC)
    span, until = _until(valid, now)
    console.write(f"wrote {write_pods(directory, pool, now, span)}")
    console.write(
        f"Valid until {until:%Y-%m-%d %H:%M} UTC, for nodes that join until then: put it into the "
        f"agents' Secret (docs/deploy-kubernetes.md). To end them: navarch nats-config user revoke "
        f"'{pool}/*'"
    )


@commands.command("region")
def region(
    name: Annotated[str, typer.Argument(help="The region's name.", show_default=False)],
    pools: Annotated[
        list[str],
        typer.Option("--pool", metavar="POOL", help="A pool whose agents connect to its server."),
    ],
    hubs: Annotated[
        list[str],
        typer.Option("--hub", metavar="HOST[:PORT]", help="A server of the fleet; 7422 if unsaid."),
    ],
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="By which agents reach the region's server."),
    ] = None,
    listen: Annotated[str, typer.Option("--listen", help="Client address.")] = "0.0.0.0:4222",
    http: Annotated[str, typer.Option("--http", help="Monitoring address.")] = "127.0.0.1:8222",
    server_dir: Annotated[
        str, typer.Option("--server-dir", help="Where the region's server finds its files.")
    ] = "",
    directory: BusDirectoryOption = BUS,
) -> None:
    """Write what the server of a region needs."""
    from services.cli import region_files  # noqa: PLC0415

    for file in region_files.write_region(
        directory,
        name,
        datetime.now(UTC),
        pools=pools,
        hubs=hubs,
        hosts=host or (),
        listen=listen,
        http=http,
        server_directory=server_dir,
    ):
        console.write(f"wrote {file}")
    console.write(
        f"The region's server gets {directory / region_files.REGIONS / name} and nothing else."
    )
    if not region_files.includes_leafnodes(directory):
        console.write(
            f"The fleet's servers do not accept it yet: give them {region_files.LEAFNODES}, add "
            f"`include ./{region_files.LEAFNODES}` to the configuration of each, restart them one "
            "after the other, and run `navarch nats-config push`"
        )
    else:
        console.write("Then give the servers what they lack: navarch nats-config push")


@users.command("add")
def add(
    name: Annotated[str, typer.Argument(help="The person's name.", show_default=False)],
    role: Annotated[
        str,
        typer.Option(
            "--role",
            metavar="|".join(USER_ROLES),
            help="What it may do.",
        ),
    ],
    valid: Valid = "90d",
    directory: BusDirectoryOption = BUS,
) -> None:
    """Write the credentials of one person."""
    from services.cli.nats_config_files import add_user  # noqa: PLC0415

    now = datetime.now(UTC)
    span, until = _until(valid, now)
    console.write(f"wrote {add_user(directory, name, role, now, span)}")
    console.write(
        f"Valid until {until:%Y-%m-%d %H:%M} UTC. Give the file to {name}, who names it in "
        "NAVARCH_NATS_CREDS_FILE; the server knows it already."
    )


@users.command("renew")
def renew(
    name: Annotated[str, typer.Argument(help="The person's name.", show_default=False)],
    valid: Valid = "90d",
    directory: BusDirectoryOption = BUS,
) -> None:
    """Write credentials of the same person and key that are valid longer."""
    from services.cli.user_renewal import renew_user  # noqa: PLC0415

    now = datetime.now(UTC)
    span, until = _until(valid, now)
    console.write(f"wrote {renew_user(directory, name, now, span)}")
    console.write(
        f"Valid until {until:%Y-%m-%d %H:%M} UTC. Give the file to {name}: the next command reads "
        "it, and nothing is restarted."
    )


def _until(valid: str, now: datetime) -> tuple[timedelta, datetime]:
    """How long credentials are valid, and until when."""
    try:
        span = timedelta(seconds=parse_duration(valid))
        until = now + span
    except (ValueError, OverflowError) as error:
        raise NavarchError(f"--valid: {error}") from error
    if span <= timedelta():
        raise NavarchError("--valid: must be more than 0")
    return span, until


@users.command("list")
def list_users(directory: BusDirectoryOption = BUS) -> None:
    """List who has, or had, credentials."""
    from services.cli.nats_config_files import BusDirectory  # noqa: PLC0415

    now = datetime.now(UTC)
    rows = [
        (
            *(each.name, each.role, each.state(now), age_since(each.issued_at, now), each.key),
            f"{each.expires_at:%Y-%m-%d %H:%M}",
        )
        for each in BusDirectory(directory).users()
    ]
    console.write_table(USER_HEADERS, rows, "There are none.")


@users.command("revoke")
def revoke(
    name: Annotated[
        str, typer.Argument(help="The person's name, or POOL/NODE.", show_default=False)
    ],
    directory: BusDirectoryOption = BUS,
) -> None:
    """Have the server refuse the credentials of a person or node."""
    from services.cli.nats_config_files import ACCOUNTS, revoke_user  # noqa: PLC0415

    revoke_user(directory, name, datetime.now(UTC))
    console.write(
        f"wrote {directory / ACCOUNTS}. To give it to the server: navarch nats-config push"
    )
