"""`navarch drill`: a fault is reported that a node does not have, to see what follows."""

from typing import Annotated, Final, get_args

import typer

from schemas.drill_orders import CODED, DRILL_CODE_MAX, GPU_INDEX_MAX, DrillOrder
from schemas.enums import SUBCODES, DrillKind
from schemas.operations import DRILL
from services.cli import console
from services.cli.command_options import Node, Output, Yes, confirm
from services.cli.fleet_connection import FleetAccess, everyday_command
from services.cli.fleet_names import find_node
from services.operator_text.safe_text import escape_line

KINDS: Final[dict[str, DrillKind]] = {each: each for each in get_args(DrillKind)}


@everyday_command
async def drill(
    fleet: FleetAccess,
    node: Node,
    kind: Annotated[
        str,
        typer.Argument(help=f"Kind of the fault: {', '.join(KINDS)}.", show_default=False),
    ],
    what: Annotated[
        str,
        typer.Argument(metavar="ARG", help="XID or SXID, or the subcode of another kind."),
    ] = "",
    *,
    gpu: Annotated[
        int, typer.Option("--gpu", min=0, max=GPU_INDEX_MAX, help="Index of the GPU.")
    ] = 0,
    act: Annotated[
        bool,
        typer.Option(
            "--act", help="Do all that the health policy demands: reset, reboot, replace."
        ),
    ] = False,
    yes: Yes = False,
    output: Output = console.Format.TABLE,
) -> None:
    """Have a fault reported that a node does not have, to see what follows.

    The node is cordoned and drained, as for a real fault; navarch uncordon ends the drill.
    Nothing is reset, rebooted, replaced or terminated without --act, and no hardware is listed.
    The agent's own settings must have `drills: allowed`, as those of simulated nodes have.
    """
    named = _kind(kind)
    code, subcode = _argument(named, what)
    view, _ = await find_node(fleet, node)
    order = DrillOrder(
        pool=view.pool, node=view.id, kind=named, code=code, subcode=subcode, gpu=gpu, act=act
    )
    confirm(_question(order), yes=yes, instead=f"look first: navarch why {view.id}")
    answer = await fleet.perform(DRILL, order)
    if output.is_data:
        console.write_data(output, answer)
        return
    console.write_message(answer, output)
    console.note(f"what follows: navarch why {view.id}")


def _kind(text: str) -> DrillKind:
    if text not in KINDS:
        raise typer.BadParameter(
            f"there is no kind {escape_line(text)!r}; kinds are {', '.join(KINDS)}",
            param_hint="KIND",
        )
    return KINDS[text]


def _argument(kind: DrillKind, text: str) -> tuple[int, str]:
    """Return the code or the subcode that is named; BadParameter where it is none."""
    if kind in CODED:
        if not text.isascii() or not text.isdigit() or not 0 < int(text[:9]) <= DRILL_CODE_MAX:
            raise typer.BadParameter(
                f"{kind} needs its code, a number as in: xid 79", param_hint="ARG"
            )
        return int(text[:9]), ""
    known = SUBCODES.get(kind, ())
    if text and text not in known:
        listed = f"is one of {', '.join(known)}" if known else "is none"
        raise typer.BadParameter(f"the subcode of {kind} {listed}", param_hint="ARG")
    return 0, text


def _question(order: DrillOrder) -> str:
    fault = f"{order.kind} {order.code or order.subcode}".strip()
    follows = "it is cordoned and drained, and nothing else"
    if order.act:
        follows = "what the health policy demands is done: it may be reset, rebooted or TERMINATED"
    return f"Drill on {order.node}: {fault} on GPU {order.gpu}; {follows}. Go on?"
