"""The call of the HTTP API that makes a request to a pool. Pure."""

from collections.abc import Callable, Mapping
from typing import Final

from schemas.operator_requests import (
    ApplyRequest,
    BreakerRequest,
    DrainRequest,
    HoldRequest,
    NodeRequest,
    RemoveRequest,
    SagaRequest,
    ScaleRequest,
)
from services.cli.fleet_discovery import NEEDS_BUS
from services.fleet_client.fleet_client import Request
from services.gateway.views import ChangeAnswer
from services.http_client import gateway_calls as calls
from services.http_client.api_call import ApiCall
from services.primitives.errors import NavarchError

NODE_CALLS: Final[Mapping[str, Callable[..., ApiCall[ChangeAnswer]]]] = {
    "cordon": calls.cordon_node,
    "uncordon": calls.uncordon_node,
    "release": calls.release_node,
}
DRAIN_CALLS: Final[Mapping[str, Callable[..., ApiCall[ChangeAnswer]]]] = {
    "drain": calls.drain_node,
    "replace": calls.replace_node,
    "reset-gpu": calls.reset_gpu_node,
    "reboot": calls.reboot_node,
    "terminate": calls.terminate_node,
}
SAGA_CALLS: Final[Mapping[str, Callable[..., ApiCall[ChangeAnswer]]]] = {
    "cancel": calls.cancel_saga,
    "retry": calls.retry_saga,
    "proceed": calls.proceed_saga,
}
BREAKER_CALLS: Final[Mapping[str, Callable[..., ApiCall[ChangeAnswer]]]] = {
    "breaker-open": calls.open_breaker,
    "breaker-close": calls.close_breaker,
}


def change_call(pool: str, verb: str, request: Request) -> ApiCall[ChangeAnswer]:
    """Return the call of a request. Pure."""
    match request:
        case DrainRequest() if verb in DRAIN_CALLS:
            return DRAIN_CALLS[verb](request.node, reason=request.reason, **drain_fields(request))
        case ApplyRequest():
            return calls.up_pool(pool, request.spec, nodes=request.nodes, reason=request.reason)
        case RemoveRequest():
            return calls.down_pool(pool, reason=request.reason, **drain_fields(request))
        case HoldRequest():
            for_ = seconds_text(request.for_)
            return calls.hold_node(request.node, for_=for_, reason=request.reason)
        case NodeRequest() if verb in NODE_CALLS:
            return NODE_CALLS[verb](request.node, reason=request.reason)
        case ScaleRequest():
            return calls.scale_pool(pool, request.nodes)
        case BreakerRequest() if verb in BREAKER_CALLS:
            return BREAKER_CALLS[verb](pool, reason=request.reason)
        case SagaRequest() if verb in SAGA_CALLS:
            return SAGA_CALLS[verb](request.saga, reason=request.reason)
        case _:
            raise NavarchError(f"{verb} {NEEDS_BUS}")


def drain_fields(request: DrainRequest | RemoveRequest) -> dict[str, str]:
    """Return how to wait for the work, as the API has it."""
    timeout = "" if request.timeout is None else seconds_text(request.timeout)
    return {"mode": request.mode, "timeout": timeout}


def seconds_text(duration: float) -> str:
    """A duration, as the API has it."""
    return f"{float(duration)}s"
