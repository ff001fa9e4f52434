"""Has a node's agent test its host."""

from typing import Final

import msgspec

from schemas import subjects
from schemas.agent_commands import DiagnoseRequest, Diagnosis
from schemas.fleet_queries import NodeView
from schemas.messages import encode
from services.fleet_client.fleet_client import ROLE_NEEDED, FleetClient
from services.primitives.errors import AnswerError, NavarchError, NotPermitted, Unavailable

_diagnosis: Final = msgspec.json.Decoder(Diagnosis)


async def diagnose(
    fleet: FleetClient, node: NodeView, request: DiagnoseRequest, seconds_max: float
) -> Diagnosis:
    """What the tests found; NavarchError where none was run."""
    subject = subjects.node_command(node.pool, node.id, "diagnose")
    try:
        reply = await fleet.bus.request(subject, encode(request), timeout_seconds=seconds_max)
        found = _diagnosis.decode(reply.data)
    except NotPermitted as error:
        raise NavarchError(ROLE_NEEDED) from error
    except Unavailable as error:
        raise NavarchError(
            f"the agent of {node.id} has not answered within {seconds_max:g} s: "
            f"`navarch why {node.id}` says whether its heartbeats come ({error})"
        ) from error
    except msgspec.DecodeError as error:
        raise AnswerError(f"the agent of {node.id} answered with no diagnosis: {error}") from error
    if found.refused:
        raise AnswerError(f"{node.id} was not tested: {found.refused}")
    return found
