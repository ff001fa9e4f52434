"""`navarch join`, `leave`, `forget`: machines that exist become nodes of a pool, and leave it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from schemas.duration import parse_duration
from schemas.fleet_queries import Query
from schemas.join_tokens import (
    JOIN,
    JOIN_REVOKE,
    JOIN_TOKENS,
    LEAVE,
    NODES_MAX,
    VALID_SECONDS_MAX,
    ForgetAnswer,
    JoinAnswer,
    JoinRecord,
    JoinRequest,
    NodeOfPool,
)
from schemas.names import InvalidNameError, token
from schemas.operations import FORGET, PLAN_FORGET
from schemas.pool_records import PoolRecord
from services.cli import console
from services.cli.batch_orders import Selection, chosen
from services.cli.command_options import Node, Nodes, Output, Pool, Selector
from services.cli.fleet_connection import FleetAccess, bus_of, everyday_command, fleet_command
from services.cli.fleet_discovery import served_settings
from services.cli.fleet_names import find_node, find_nodes
from services.cli.ssh_join import host_steps
from services.cli.ssh_join.agent_wheels import AgentWheels, keep_wheels, kept_wheels, read_wheels
from services.fleet_client.fleet_client import FleetClient
from services.fleet_client.query_answers import decode_answer
from services.operator_text.quantities import age_since
from services.operator_text.safe_text import escape_line
from services.primitives.errors import NavarchError
from services.primitives.host_list import expand_hosts

WHO: Final = "provisioner"
HEADERS: Final = ("node", "pool", "state", "age", "made by", "ends")
ORDER_SECONDS_MAX: Final = 30.0
if TYPE_CHECKING:
    from services.cli.ssh_join.host_runs import HostResult

TOKEN_SECONDS: Final = 600.0
"""For which a token holds that is used at once."""
KNOWN_HOSTS: Final = "join.known_hosts"
LOOPBACK: Final = ("//127.", "//localhost", "//[::1]")


@fleet_command
async def join(
    fleet: FleetAccess,
    nodes: Annotated[
        list[str] | None,
        typer.Argument(
            help="Machines, user@gpu-[01-10] or NODE=user@host:port; with --print names of nodes.",
            show_default=False,
        ),
    ] = None,
    pool: Pool = "",
    *,
    config: Path | None = None,
    wheels: Annotated[
        Path | None,
        typer.Option("--wheels", help="Folder with the agent's wheels, where it is not installed."),
    ] = None,
    key: Annotated[str, typer.Option("--key", help="Private key of the SSH login.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done on each machine.")
    ] = False,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Bring agents that joined to the wheels' release.")
    ] = False,
    selector: Selector = None,
    print_lines: Annotated[
        bool, typer.Option("--print", help="Print a line for each, to run on its machine.")
    ] = False,
    valid: Annotated[str, typer.Option("--valid", help="How long a token holds.")] = "1h",
    again: Annotated[
        bool, typer.Option("--again", help="Also for one that joined and lost its disk.")
    ] = False,
    shown: Annotated[
        bool, typer.Option("--list", help="List the tokens, and who used them.")
    ] = False,
    revoke: Annotated[str, typer.Option("--revoke", help="Revoke the token of this node.")] = "",
    output: Output = console.Format.TABLE,
) -> None:
    """Let machines that exist join a pool.

    The pool has `nodes: enrolled`, or `nodes: adopted` and lists the machine. A token is for one
    machine, one pool and one name, and ends by itself.
    """
    bus = bus_of(fleet, "this command")
    if shown or revoke:
        await _tokens(bus, revoke, pool, output)
        return
    if not nodes:
        raise NavarchError("name the machines: navarch join user@gpu-[01-08]")
    if selector and not upgrade:
        raise NavarchError("--selector is for --upgrade: name the machines that join")
    if not print_lines:
        place = HostLogin(_data_folder(config), key, wheels)
        named = await _pool(bus, pool)
        if upgrade:
            await _upgrade_hosts(fleet, nodes, named, place, selector or (), dry_run=dry_run)
            return
        await _join_hosts(bus, nodes, named, place, again=again, dry_run=dry_run)
        return
    names = _names(nodes)
    named = await _pool(bus, pool)
    asked = JoinRequest(pool=named, nodes=names, valid_seconds=_seconds(valid), again=again)
    data = await bus.order(JOIN, asked, timeout_seconds=ORDER_SECONDS_MAX, who=WHO)
    answer = decode_answer(JoinAnswer, data, JOIN, WHO)
    if output.is_data:
        console.write_data(output, answer)
        return
    login = HostLogin(_data_folder(config), key, wheels)
    _print_lines(answer, served_settings(config)[0].agent.install_port, login)


def _print_lines(answer: JoinAnswer, port: int, login: "HostLogin") -> None:
    """Print a line for each machine; `port`: at which it is given the agent, 0: nowhere."""
    from services.cli.agent_download import printed_line  # noqa: PLC0415 - as above

    if any(each in answer.url for each in LOOPBACK):
        console.note(
            f"only this machine reaches {answer.url}: for others set agent.bus_url to the address "
            "of this one (tls://HOST:4222), and serve again"
        )
    console.note(
        f"each line is for one machine, as root, until {answer.expires_at:%Y-%m-%d %H:%M} UTC"
        + (f"; authority {answer.fingerprint[:16]}" if answer.fingerprint else "")
    )
    if port and not login.agent_wheels(dry_run=False).packed:
        console.note("no wheels are kept, so the agent must be installed: add --wheels FOLDER")
        port = 0
    for each in answer.tokens:
        # `echo` is the shell's own: the token is in no process's arguments.
        line = f"echo {each.token} | navarch-agent join"
        line = printed_line(each.token, port) if port else line
        console.write(f"{line}  # {each.node}", exactly=True)


@fleet_command
async def leave(
    fleet: FleetClient,
    node: Node,
    *,
    config: Path | None = None,
    ssh: Annotated[
        str, typer.Option("--ssh", help="user@host: also remove the agent from the machine.")
    ] = "",
    key: Annotated[str, typer.Option("--key", help="Private key of the SSH login.")] = "",
) -> None:
    """Take a machine that joined out of its pool.

    Its credentials are refused from then on. Its work is not drained, and nothing on the machine
    is changed: `navarch drain` first.
    """
    view, _ = await find_node(fleet, node)
    asked = NodeOfPool(pool=view.pool, node=view.id)
    await fleet.order(LEAVE, asked, timeout_seconds=ORDER_SECONDS_MAX, who=WHO)
    if not ssh:
        console.write(f"{view.id} has left pool {view.pool}; on the machine: navarch-agent leave")
        return
    console.write(f"{view.id} has left pool {view.pool}")
    from services.cli.ssh_join.host_runs import HostRuns  # noqa: PLC0415 - as above

    runs = HostRuns(*HostLogin(_data_folder(config), key).used(), AgentWheels(), view.pool)
    _require_all(await runs.leave(_targets([f"{view.id}={ssh}"]), _report))


@everyday_command
async def forget(
    fleet: FleetAccess,
    nodes: Nodes,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be forgotten, and change nothing.")
    ] = False,
    output: Output = console.Format.TABLE,
) -> None:
    """Take adopted nodes out of the fleet; nothing is done to their machines.

    Their agents' credentials are refused from then on, and no sweep adopts them again. Work is not
    drained: `navarch drain` first. Launched nodes are ended by `navarch terminate`.
    """
    views = await find_nodes(fleet, nodes)
    order = PLAN_FORGET if dry_run else FORGET
    answers = []
    for each in views:
        answers.append(await fleet.perform(order, NodeOfPool(pool=each.pool, node=each.id)))
        if not output.is_data:
            console.write(escape_line(forget_text(answers[-1], dry_run=dry_run)))
    if output.is_data:
        console.write_data(output, answers)


def forget_text(answer: ForgetAnswer, *, dry_run: bool) -> str:
    """Return what is forgotten, and how it would come back. Pure."""
    agent = "; its agent's credentials are refused" if answer.has_agent else "; it had no agent"
    back = f"navarch join --print {answer.node}"
    if answer.is_listed:
        back = f"{answer.provider} goes on listing it; navarch sweep --adopt {answer.node}"
    what = "would be" if dry_run else "is"
    return f"{answer.node} of pool {answer.pool} {what} forgotten{agent}. To have it back: {back}"


class HostLogin(NamedTuple):
    """Says how machines are entered, and what is installed on them."""

    data: Path
    key: str
    wheels: Path | None = None

    def used(self) -> tuple[Path, str]:
        """Return the file of host keys, and the private key."""
        from services.cli.ssh_join import host_runs  # noqa: PLC0415 - keeps other commands quick

        return self.data / "ssh" / KNOWN_HOSTS, self.key or host_runs.own_key()

    def agent_wheels(self, *, dry_run: bool) -> AgentWheels:
        """Return the wheels: those of the folder, which are kept from then on, or the kept ones."""
        if self.wheels is None:
            return kept_wheels(self.data)
        return read_wheels(self.wheels) if dry_run else keep_wheels(self.wheels, self.data)


async def _join_hosts(
    fleet: FleetClient, words: list[str], pool: str, login: HostLogin, *, again: bool, dry_run: bool
) -> None:
    """Make machines nodes over SSH; each one's token never leaves this process and its stdin."""

    async def token_of(node: str) -> str:
        asked = JoinRequest(pool=pool, nodes=(node,), valid_seconds=TOKEN_SECONDS, again=again)
        data = await fleet.order(JOIN, asked, timeout_seconds=ORDER_SECONDS_MAX, who=WHO)
        return decode_answer(JoinAnswer, data, JOIN, WHO).tokens[0].token

    targets = _targets(words)
    known = [each.id for each in await fleet.nodes(Query(pool=pool))]
    from services.cli.ssh_join.host_runs import HostRuns  # noqa: PLC0415 - as above

    runs = HostRuns(*login.used(), login.agent_wheels(dry_run=dry_run), pool, known)
    _require_all(await runs.join(targets, token_of, _report, dry_run=dry_run))


async def _upgrade_hosts(
    fleet: FleetAccess,
    words: list[str],
    pool: str,
    login: HostLogin,
    labels: Sequence[str],
    *,
    dry_run: bool,
) -> None:
    """Bring agents to the release of the wheels; `labels`: of the nodes, if not of all."""
    targets = _targets(words)
    known = {each.id for each in await fleet.nodes(Query(pool=pool))}
    if labels:
        selected = {each.id for each in await chosen(fleet, Selection(labels=labels))}
        targets = [each for each in targets if each.node in selected]
    if not targets:
        raise NavarchError(f"none of these machines is {' and '.join(labels)}: navarch list")
    wheels = login.agent_wheels(dry_run=dry_run)
    if not wheels.packed:
        raise NavarchError("no wheels are kept: add --wheels FOLDER, as for `navarch join`")
    from services.cli.ssh_join.host_runs import HostRuns  # noqa: PLC0415 - as above

    runs = HostRuns(*login.used(), wheels, pool, known)
    _require_all(await runs.upgrade(targets, _report, dry_run=dry_run))


def _targets(words: list[str]) -> list[host_steps.Target]:
    try:
        found = host_steps.targets(words)
    except (ValueError, InvalidNameError) as error:
        raise NavarchError(str(error)) from error
    if len(found) > NODES_MAX:
        raise NavarchError(f"name at most {NODES_MAX} machines at once; these are {len(found)}")
    return found


def _report(result: "HostResult") -> None:
    console.write(f"{'ok  ' if result.ok else 'FAIL'}  {result.target.node}  {result.text}")


def _require_all(results: "list[HostResult]") -> None:
    if failed := [each for each in results if not each.ok]:
        raise NavarchError(f"{len(failed)} of {len(results)} machines failed; see above, and again")


def _data_folder(config: Path | None) -> Path:
    return Path(served_settings(config)[0].data_dir)


async def _tokens(fleet: FleetClient, revoke: str, pool: str, output: console.Format) -> None:
    """List the tokens, or revoke one of them."""
    data = await fleet.query(JOIN_TOKENS, Query(), who=WHO)
    found = decode_answer(list[JoinRecord], data, JOIN_TOKENS, WHO)
    found = [each for each in found if pool in ("", each.pool)]
    if revoke:
        named = [each for each in found if each.node == revoke]
        if len(named) != 1:
            some = ", ".join(f"{each.pool}/{each.node}" for each in found[:8]) or "none"
            raise NavarchError(f"{revoke} has no token, or one in several pools; there is: {some}")
        asked = NodeOfPool(pool=named[0].pool, node=revoke)
        await fleet.order(JOIN_REVOKE, asked, who=WHO)
        used = named[0].used_at is not None
        more = f"; it was used, and what joined stays: navarch leave {revoke}" if used else ""
        console.write(f"the token of {revoke} is revoked{more}")
        return
    if output.is_data:
        console.write_data(output, found)
        return
    now = datetime.now(UTC)
    rows = [
        (
            *(each.node, each.pool, _state(each, now), age_since(each.made_at, now), each.by),
            f"{each.expires_at:%m-%d %H:%M} UTC",
        )
        for each in sorted(found, key=lambda each: (each.pool, each.node))
    ]
    console.write_table(HEADERS, rows, "There is no token.", output)


def _state(record: JoinRecord, now: datetime) -> str:
    if record.used_at is not None:
        return f"used {record.used_at:%m-%d %H:%M} UTC by {record.agent_key[:9]}"
    return "ended" if record.expires_at <= now else "open"


def _names(given: list[str]) -> tuple[str, ...]:
    """Return the names of the nodes, each once."""
    try:
        names = tuple(dict.fromkeys(name for each in given for name in expand_hosts(each)))
        for name in names:
            token(name, "node")
    except (ValueError, InvalidNameError) as error:
        raise NavarchError(
            f"{error}: name nodes with a-z, 0-9 and '-', as gpu-01 or gpu-[01-08]"
        ) from error
    if not 0 < len(names) <= NODES_MAX:
        raise NavarchError(f"name 1 to {NODES_MAX} nodes at once; these are {len(names)}")
    return names


def _seconds(text: str) -> float:
    try:
        seconds = float(parse_duration(text))
    except ValueError as error:
        raise NavarchError(f"--valid {text}: {error}") from error
    if not 0 < seconds <= VALID_SECONDS_MAX:
        raise NavarchError(f"--valid {text}: a token holds for a week at most; write 1h, or 168h")
    return seconds


async def _pool(fleet: FleetClient, named: str) -> str:
    """Return the pool that machines join: the one named, or the only one of its kind."""
    if named:
        return named
    records: list[PoolRecord] = await fleet.pool_records()
    found = [each.name for each in records if each.spec.nodes != "launched"]
    if len(found) == 1:
        return found[0]
    if not found:
        raise NavarchError(
            "no pool takes machines that join: add one of `nodes: enrolled` to the configuration "
            "(`navarch init` writes an example)"
        )
    raise NavarchError(f"several pools take machines that join: add --pool {found[0]}, or another")
