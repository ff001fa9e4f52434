"""Orders about many nodes: which ones, what each would do, and one request after the other."""

import asyncio
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from schemas.dry_run import DryRun
from schemas.fleet_queries import NodeView, Query
from schemas.operator_requests import BATCH_PREFIX
from services.cli import console, dry_run_output
from services.cli.command_options import confirm
from services.cli.console import Format
from services.cli.fleet_connection import FleetAccess
from services.cli.fleet_names import AT_ONCE_MAX, NODES_MAX, find_nodes
from services.cli.node_requests import request_each
from services.fleet_client.fleet_client import PAGE_NODES, NodeRequests
from services.fleet_client.node_filter import FIELDS, NodeFilter, labels_asked
from services.operator_text.safe_text import escape_line
from services.primitives.errors import NavarchError

FILE_CHARS_MAX: Final = 1_000_000
"""Of a file of names."""
STDIN: Final = "-"
BATCH_BYTES: Final = 8
HEADERS: Final = ("node", "pool", "zone", "would be", "why")


class Selection(NamedTuple):
    """Says which nodes an order is about, by one of three ways, and how many of them at most."""

    names: Sequence[str] = ()
    labels: Sequence[str] = ()
    """`KEY=VALUE`, all of which hold."""
    file: str = ""
    """A file of names, one a line; `-`: standard input."""
    at_most: int = 0
    """Nodes of which the order is accepted; 0: all."""

    @property
    def is_batch(self) -> bool:
        """Return whether the order is planned first: the nodes were not all written down."""
        return bool(self.labels or self.file or self.at_most)


async def chosen(fleet: FleetAccess, selection: Selection) -> list[NodeView]:
    """Return the nodes; NavarchError where there are none, or too many."""
    ways = (bool(selection.names), bool(selection.labels), bool(selection.file))
    if sum(ways) != 1:
        raise NavarchError(
            "name the nodes, or select them with --selector, or with --from-file: one of the three"
        )
    if selection.labels:
        return await _selected(fleet, selection.labels)
    names = _read_names(selection.file) if selection.file else list(selection.names)
    return await find_nodes(fleet, names)


async def _selected(fleet: FleetAccess, labels: Sequence[str]) -> list[NodeView]:
    try:
        asked = labels_asked(labels)
        fields = {key: value for key, value in asked.items() if key in FIELDS}
        others = [f"{key}={value}" for key, value in asked.items() if key not in FIELDS]
        pools = await fleet.pools_labelled(others) if others else None
    except ValueError as error:
        raise NavarchError(f"--selector: {error}") from error
    if empty := [key for key, value in fields.items() if not value]:
        # `zone=$ZONE` of a variable that is not set would be an order about every node.
        raise NavarchError(f"--selector: {empty[0]}= has no value")
    if len(asked) < len(labels):
        raise NavarchError("--selector: a key is given twice; a node has one value of each")
    wanted = NodeFilter(**fields, pools=pools)
    nodes = await fleet.nodes(Query(pool=fields.get("pool", ""), limit=PAGE_NODES))
    found = sorted((each for each in nodes if wanted.matches(each)), key=_place)
    if not found:
        known = ", ".join(FIELDS)
        raise NavarchError(
            f"no node is {' and '.join(labels)}: keys are {known}; any other is a label of a pool"
        )
    if len(found) > NODES_MAX:
        raise NavarchError(
            f"{len(found)} nodes are selected; at most {NODES_MAX} may be: narrow it"
        )
    return found


def _place(node: NodeView) -> tuple[str, str]:
    return node.pool, node.id


def _read_names(file: str) -> list[str]:
    """Read the names of a file: one a line, without comments."""
    try:
        text = (
            sys.stdin.read(FILE_CHARS_MAX + 1)
            if file == STDIN
            else Path(file).read_text(encoding="utf-8")
        )
    except (OSError, UnicodeDecodeError) as error:
        raise NavarchError(f"--from-file {file}: {error}") from error
    if len(text) > FILE_CHARS_MAX:
        raise NavarchError(f"--from-file {file}: it has more than {FILE_CHARS_MAX} characters")
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    if names := [line for line in lines if line]:
        return names
    raise NavarchError(f"--from-file {file}: it names no node")


async def order_nodes(
    fleet: FleetAccess,
    verb: str,
    selection: Selection,
    make: Callable[[str], NodeRequests],
    output: Format,
    *,
    dry_run: bool = False,
    yes: bool = False,
    wait: bool = False,
    wait_timeout: str = "",
) -> None:
    """Order something of the nodes; of those that were selected, after the plan is confirmed."""
    views = await chosen(fleet, selection)
    if dry_run and not selection.is_batch:
        requests = [(each.pool, make(each.id)) for each in views]
        await dry_run_output.dry_runs(fleet, verb, requests, output)
        return
    batch = ""
    if selection.is_batch:
        plan = await _planned(fleet, verb, views, make)
        if dry_run and output.is_data:
            console.write_data(output, plan)
            return
        _write_plan(verb, views, plan, selection.at_most, quiet=output.is_data)
        if dry_run:
            return
        confirm(_question(verb, plan, selection.at_most), yes=yes, instead="--dry-run")
        batch = f"{BATCH_PREFIX}{secrets.token_hex(BATCH_BYTES)}"
    await request_each(
        *(fleet, verb, views, make, output),
        wait=wait,
        wait_timeout=wait_timeout,
        batch=batch,
        at_most=selection.at_most,
    )


async def _planned(
    fleet: FleetAccess, verb: str, views: Sequence[NodeView], make: Callable[[str], NodeRequests]
) -> list[DryRun]:
    slots = asyncio.Semaphore(AT_ONCE_MAX)

    async def plan(view: NodeView) -> DryRun:
        async with slots:
            return await fleet.dry_run(view.pool, verb, make(view.id))

    return await asyncio.gather(*map(plan, views))


def _write_plan(
    verb: str, views: Sequence[NodeView], plan: Sequence[DryRun], at_most: int, *, quiet: bool
) -> None:
    """Print what each node's order would be answered alone, and whose work all of them would end.

    `quiet`: without a line for each node.
    """
    accepted = sum(each.accepted for each in plan)
    limit = f", until {at_most} are accepted" if at_most else ""
    text = (
        f"{verb} of {len(plan)} nodes, one after the other{limit}: {accepted} would be accepted, "
        f"{len(plan) - accepted} refused, each asked for alone; the budgets decide at each"
    )
    if not quiet:
        rows = [
            (
                *(view.id, view.pool, view.zone or "-"),
                "accepted" if each.accepted else f"refused ({each.refusal})",
                escape_line(each.reason) or "-",
            )
            for view, each in zip(views, plan, strict=True)
        ]
        console.write_table(HEADERS, rows)
    for line in (text, *dry_run_output.owner_lines(*plan)):
        console.note(line)


def _question(verb: str, plan: Sequence[DryRun], at_most: int) -> str:
    count = min(at_most or len(plan), len(plan))
    return f"{verb.capitalize()} {'at most ' if at_most else ''}{count} of these nodes?"
