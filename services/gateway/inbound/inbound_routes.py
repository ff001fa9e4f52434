"""POST /inbound/pagerduty and /inbound/slack: no token, but the vendor's signature of each body.

Without its secret in the configuration a route does not exist.
"""

from collections.abc import Callable
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar import MediaType, Request, post
from litestar.handlers import HTTPRouteHandler

from schemas.gateway_settings import InboundSettings
from services.gateway.authentication import PUBLIC
from services.gateway.inbound import pagerduty_events, slack_interactions
from services.gateway.inbound.inbound_orders import InboundOrders
from services.gateway.inbound.pagerduty_events import IncidentKeys
from services.gateway.inbound.signatures import (
    PAGERDUTY_HEADER,
    SLACK_HEADER,
    SLACK_TIME_HEADER,
    WINDOW_SECONDS,
    is_fresh,
    is_of_pagerduty,
    is_of_slack,
    slack_time,
)
from services.gateway.problems import ProblemError

PAGERDUTY_PATH: Final = "/inbound/pagerduty"
SLACK_PATH: Final = "/inbound/slack"
NOTHING: Final = "ignored: nothing is to be done"
OPTIONS: Final[dict[str, Any]] = {
    "opt": {PUBLIC: True},
    "include_in_schema": False,
    "status_code": HTTPStatus.OK,
    "media_type": MediaType.TEXT,
}
AnyRequest = Request[Any, Any, Any]


def inbound_routes(
    settings: InboundSettings, orders: InboundOrders, now: Callable[[], datetime]
) -> list[HTTPRouteHandler]:
    """Return the routes of the vendors whose secrets are configured."""
    found = []
    if settings.pagerduty_secret:
        found.append(_pagerduty_route(settings, orders, now))
    if settings.slack_secret:
        found.append(_slack_route(settings, orders, now))
    return found


def _pagerduty_route(
    settings: InboundSettings, orders: InboundOrders, now: Callable[[], datetime]
) -> HTTPRouteHandler:
    incidents = IncidentKeys()

    @post(PAGERDUTY_PATH, **OPTIONS)
    async def answer_pagerduty(request: AnyRequest) -> str:
        body = await request.body()
        header = request.headers.get(PAGERDUTY_HEADER, "")
        if not is_of_pagerduty(settings.pagerduty_secret, header, body):
            raise _unsigned(PAGERDUTY_HEADER, "gateway.inbound.pagerduty_secret")
        orders.admit("pagerduty")
        event = _read(pagerduty_events.event_in, body)
        if not is_fresh(event.occurred_at, now()):
            raise _late("the event")
        if event.data is None:
            return NOTHING
        incidents.learn(event.data)
        action = pagerduty_events.action_in(event, incidents.key_of(event.data))
        return NOTHING if action is None else await orders.carry_out(action, _address(request))

    return answer_pagerduty


def _slack_route(
    settings: InboundSettings, orders: InboundOrders, now: Callable[[], datetime]
) -> HTTPRouteHandler:
    @post(SLACK_PATH, **OPTIONS)
    async def answer_slack(request: AnyRequest) -> str:
        body = await request.body()
        header = request.headers.get(SLACK_HEADER, "")
        timestamp = request.headers.get(SLACK_TIME_HEADER, "")
        if not is_of_slack(settings.slack_secret, header, timestamp, body):
            raise _unsigned(SLACK_HEADER, "gateway.inbound.slack_secret")
        at = slack_time(timestamp)
        if at is None or not is_fresh(at, now()):
            raise _late("the request")
        orders.admit("slack")
        payload = _read(slack_interactions.payload_in, body)
        action = slack_interactions.action_in(payload)
        if not slack_interactions.is_of_team(payload, settings.slack_team):
            reason = "the request is of another Slack workspace than gateway.inbound.slack_team"
            if action is not None:
                await orders.record(action, _address(request), "forbidden", reason)
            raise ProblemError(HTTPStatus.FORBIDDEN, reason, "press it in the fleet's workspace")
        if action is None:
            return ""
        if action.verb == "note" and not action.note:
            raise ProblemError(
                HTTPStatus.BAD_REQUEST, "the note is empty", "write it above the button first"
            )
        await orders.carry_out(action, _address(request))
        # A text would be shown in place of the message by some kinds of them.
        return ""

    return answer_slack


def _read(read: Callable[[bytes], Any], body: bytes) -> Any:
    """Return what a body says; ProblemError where it is not as the vendor's contract says."""
    try:
        return read(body)
    except (ValueError, RecursionError, msgspec.DecodeError) as error:
        detail = f"the body is not as the contract says: {error}"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail) from error


def _unsigned(header: str, setting: str) -> ProblemError:
    detail = f"{header} is missing, or is no signature of this body"
    return ProblemError(HTTPStatus.UNAUTHORIZED, detail, f"compare {setting} with the vendor's")


def _late(what: str) -> ProblemError:
    detail = f"{what} is of a time more than {WINDOW_SECONDS} s from the gateway's"
    return ProblemError(HTTPStatus.UNAUTHORIZED, detail, "compare the clocks; send it at once")


def _address(request: AnyRequest) -> str:
    return request.client.host if request.client is not None else ""
