"""Asks the pool-manager about machines that no order means, and keeps what holds each back."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from schemas import subjects
from schemas.fleet_queries import CurrentFailure
from schemas.messages import encode
from schemas.proposed_removals import (
    PROPOSE_REMOVAL,
    RemovalAnswer,
    RemovalGate,
    RemovalProposal,
)
from schemas.termination_orders import Authority
from services.bus.port import Bus
from services.bus.protocol.endpoint_replies import reply_data
from services.primitives.clock import Clock
from services.primitives.errors import AnswerError, BusError
from services.provisioner.removal.sweep_actions import REMOVALS, SweepAction

log = logging.getLogger(__name__)

ANSWER_SECONDS_MAX: Final = 10.0
HELD_FOR: Final = timedelta(minutes=10)
"""A machine that is held back for longer is reported, with what holds it."""
ASKED_AT_ONCE_MAX: Final = 4
GATED: Final = REMOVALS | {"keep-unnamed"}
"""What can be held back."""

_answer: Final = msgspec.json.Decoder(RemovalAnswer)


class Held(NamedTuple):
    """A held removal says what holds its machine back."""

    action: SweepAction
    gate: RemovalGate
    reason: str
    since: datetime


class Proposals:
    """Start the proposals of one replica."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._held: dict[tuple[str, str], Held] = {}
        """Provider and ID -> what holds it."""
        self._asking = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    @property
    def held(self) -> Mapping[tuple[str, str], Held]:
        """Return what holds each machine back, by provider and ID."""
        return self._held

    async def authority(self, action: SweepAction) -> Authority | None:
        """Return the authority to remove a machine; None: it is held back."""
        instance, now = action.instance, self._clock.now()
        key = action.provider, instance.provider_id
        proposal = RemovalProposal(
            pool=instance.pool,
            node=instance.name,
            provider=action.provider,
            provider_id=instance.provider_id,
            beside=action.beside,
            address=instance.address,
            created_at=instance.created_at,
            reason=action.why,
        )
        answer = await self.ask(proposal)
        if not answer.gate:
            self._held.pop(key, None)
            request = f"removal-{action.provider}-{instance.provider_id}-granted"
            return Authority(kind="proof", request=request, at=now, proof=proposal)
        since = self._held[key].since if key in self._held else now
        self._held[key] = Held(action, answer.gate, answer.reason, since)
        log.info("held back", extra={"instance": action.key, "reason": answer.reason})
        return None

    async def ask(self, proposal: RemovalProposal) -> RemovalAnswer:
        """Return what holds a removal back now; what is not answered holds it."""
        subject = subjects.query(PROPOSE_REMOVAL)
        try:
            async with self._asking:
                reply = await self._bus.request(
                    subject, encode(proposal), timeout_seconds=ANSWER_SECONDS_MAX
                )
            return _answer.decode(reply_data(reply))
        except (AnswerError, BusError, msgspec.DecodeError) as error:
            reason = f"the pool-manager does not answer: {error}"
            return RemovalAnswer(gate="unread", reason=reason)

    def report(self, found: Sequence[SweepAction]) -> list[CurrentFailure]:
        """Forget what is no longer to be removed; return what is held back for too long."""
        for each in found:
            if each.kind == "keep-unnamed":
                held = Held(each, "no-pool", unnamed_remedy(each), self._clock.now())
                self._held.setdefault((each.provider, each.instance.provider_id), held)
        wanted = {(each.provider, each.instance.provider_id) for each in found}
        self._held = {key: each for key, each in self._held.items() if key in wanted}
        since = self._clock.now() - HELD_FOR
        return [held_failure(each) for each in self._held.values() if each.since <= since]


def unnamed_remedy(action: SweepAction) -> str:
    """Return the command that removes an instance whose tags name no node."""
    return f"`navarch sweep --terminate {action.instance.provider_id}` removes it"


def held_failure(held: Held) -> CurrentFailure:
    """Describe a machine that should go and is held back."""
    action, instance = held.action, held.action.instance
    price = instance.dollars_per_hour
    cost = f", at ${price:g} an hour" if price else ""
    return CurrentFailure(
        failure="removal-held",
        about=f"instance {instance.provider_id or instance.name} at {action.provider}",
        reason=(
            f"{action.why}; held back by {held.gate} since {held.since:%Y-%m-%d %H:%M:%S} UTC"
            f"{cost}: {held.reason}"
        ),
        remedy=(
            "`navarch sweep --dry-run` shows it; end what holds it back, or remove it with "
            f"`navarch sweep --terminate {instance.provider_id or instance.name}`"
        ),
    )
