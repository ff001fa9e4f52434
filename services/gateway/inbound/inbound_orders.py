"""Carries out once what a person did about an alert elsewhere, and publishes who did."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Final

from schemas import subjects
from schemas.fleet_events import FACTS, HttpChange
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS
from schemas.value_limits import NAME_CHARS_MAX
from services.fleet_client.fleet_client import FleetClient
from services.fleet_client.service_orders import open_alerts
from services.fleet_client.stored_events import stored_batches
from services.gateway.caller_rate import CallerRate
from services.gateway.change_requests import REASON_CHARS_MAX
from services.gateway.inbound.inbound_action import InboundAction, alert_named, orders_of
from services.gateway.inbound.signatures import WINDOW_SECONDS
from services.gateway.problems import ProblemError, too_often
from services.primitives.errors import AnswerError, BusError, NavarchError
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

ANSWER_SECONDS_MAX: Final = 2.5
"""Slack waits three seconds for an answer, PagerDuty five."""
REMEMBERED: Final = timedelta(seconds=2 * WINDOW_SECONDS)
"""A request may be of a time as far ahead of ours as it may be behind it."""
ROLE: Final = "operator"
CHANGES: Final = (subjects.fleet_event(FACTS[HttpChange]),)
DONE: Final = "done"
REPEATED: Final = "repeated: it was carried out before"
NO_ALERT: Final = "ignored: no open alert has this key"


class InboundOrders:
    """Gives the orders over the bus, in the names of people elsewhere."""

    def __init__(
        self,
        fleet: FleetClient,
        rate: CallerRate,
        now: Callable[[], datetime],
        new_id: Callable[[], str],
    ) -> None:
        """`rate`: of each vendor; `new_id`: of the events about what was not carried out."""
        self._fleet = fleet
        self._rate = rate
        self._now = now
        self._new_id = new_id
        self._running: set[str] = set()

    def admit(self, source: str) -> None:
        """Count a signed request of a vendor; ProblemError if there are too many."""
        wait = self._rate.seconds_to_wait(source, self._now().timestamp())
        if wait:
            detail = f"{source} sends more often than gateway.requests_per_minute allows"
            raise too_often(detail, wait)

    async def carry_out(self, action: InboundAction, address: str) -> str:
        """Give the orders, unless that was done; ProblemError where one is not carried out."""
        if action.event in self._running:
            return REPEATED
        self._running.add(action.event)
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                if await self._is_done(action):
                    return REPEATED
                return await self._order(action, address)
        except TimeoutError as error:
            await self.record(action, address, "failed", "no answer in time")
            detail = f"the fleet has not answered within {ANSWER_SECONDS_MAX:g} s"
            raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, detail) from error
        except AnswerError as error:
            await self.record(action, address, "refused", str(error))
            raise ProblemError(HTTPStatus.CONFLICT, str(error)) from error
        except NavarchError as error:
            await self.record(action, address, "failed", str(error))
            raise
        finally:
            self._running.discard(action.event)

    async def _order(self, action: InboundAction, address: str) -> str:
        alert = alert_named(action.key, await open_alerts(self._fleet.bus))
        if alert is None:
            return NO_ALERT
        for order, request in orders_of(action, alert):
            await self._fleet.perform(order, request)
        await self.record(action, address, "accepted", "")
        return DONE

    async def _is_done(self, action: InboundAction) -> bool:
        """Return whether any gateway has carried it out, by what is stored."""
        since = self._now() - REMEMBERED
        batches = stored_batches(self._fleet.bus, EVENTS.name, CHANGES, since)
        async with aclosing(batches) as following:
            async for batch in following:
                if any(getattr(decode_stored(each), "id", "") == action.event for each in batch):
                    return True
        return False

    async def record(self, action: InboundAction, address: str, outcome: str, reason: str) -> None:
        """Publish what came of an action; only what was carried out has the action's own ID."""
        said = f"POST /inbound/{action.source} by {action.person_id}: {action.verb} {action.key}"
        event = HttpChange(
            id=action.event if outcome == "accepted" else self._new_id(),
            time=self._now(),
            by=action.by,
            role=ROLE,
            address=address,
            change=said[:NAME_CHARS_MAX],
            outcome=outcome,  # type: ignore[arg-type]
            reason=reason[:REASON_CHARS_MAX],
        )
        try:
            await publish_event(self._fleet.bus, event)
        except BusError as error:
            log.error("an answer is not in the events: %s: %s", event, error)  # noqa: TRY400
