"""Terminates EC2 instances: all that wait at one moment go in one request.

EC2 refuses a request as a whole for one instance that it does not know, or that may not be
terminated. Those that it names do not exist; any other refusal is narrowed down by halves.
"""

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from services.provisioner.provider_client.provider_errors import SERVER_ERROR, ProviderError
from services.provisioner.providers.aws_clients import AwsClients
from services.provisioner.providers.aws_errors import ABSENT

INSTANCES_PER_REQUEST_MAX: Final = 100
"""EC2 takes a thousand, and recommends smaller batches."""
UNAUTHORIZED: Final = "UnauthorizedOperation"
"""A policy may allow an action on some instances only."""
NAME: Final = re.compile(r"[\w-]+")


# --- refusals: pure ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedBatch:
    """The instances of a refused request: each is in one of these."""

    absent: tuple[str, ...] = ()
    apart: tuple[tuple[str, ...], ...] = ()
    """Groups to be requested again, each by itself."""
    failed: tuple[str, ...] = ()


def after_refusal(sent: tuple[str, ...], error: ProviderError) -> RefusedBatch:
    """Return what the refusal of a request means for its instances."""
    if error.code in ABSENT:
        named = set(NAME.findall(error.message))
        if absent := tuple(each for each in sent if each in named):
            rest = tuple(each for each in sent if each not in named)
            return RefusedBatch(absent=absent, apart=(rest,) if rest else ())
        if len(sent) == 1:
            return RefusedBatch(absent=sent)
    elif len(sent) == 1 or not _may_concern_one(error):
        return RefusedBatch(failed=sent)
    middle = len(sent) // 2
    return RefusedBatch(apart=(sent[:middle], sent[middle:]))


def _may_concern_one(error: ProviderError) -> bool:
    """Whether EC2 may have refused the request for one instance alone."""
    if error.kind == "AUTH":
        return error.code == UNAUTHORIZED
    return error.kind != "THROTTLE" and 0 < (error.status or 0) < SERVER_ERROR


# --- requests ------------------------------------------------------------------------------------


class Terminations:
    """Terminates instances of one account in one region, with one request at a time."""

    def __init__(self, clients: AwsClients) -> None:
        self._clients = clients
        self._waiting: dict[str, asyncio.Future[Exception | None]] = {}
        self._apart: list[tuple[str, ...]] = []
        """Groups of a refused request; those in them wait as well."""
        self._running: asyncio.Task[None] | None = None

    async def terminate(self, instance_id: str) -> None:
        """Begin to remove an instance; one that EC2 does not know is gone."""
        if instance_id not in self._waiting:
            self._waiting[instance_id] = asyncio.get_running_loop().create_future()
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        # Shielded: a caller that is cancelled must not take the answer from another.
        error = await asyncio.shield(self._waiting[instance_id])
        if error is not None:
            raise error

    async def close(self) -> None:
        """Cancel the request, and all who wait."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        for each in self._waiting.values():
            each.cancel()
        self._waiting.clear()

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._send()
        finally:
            self._running = None

    async def _send(self) -> None:
        sent: tuple[str, ...] = ()

        async def fill() -> dict[str, Any]:
            nonlocal sent
            waiting = tuple(islice(self._waiting, INSTANCES_PER_REQUEST_MAX))
            sent = self._apart[0] if self._apart else waiting
            return {"InstanceIds": list(sent)}

        refused = RefusedBatch()
        failed: Exception | None = None
        try:
            await self._clients.call_with("ec2", "terminate_instances", fill)
        except ProviderError as error:
            # Without a slot none was sent, and all have waited for it.
            refused = (
                after_refusal(sent, error) if sent else RefusedBatch(failed=tuple(self._waiting))
            )
            failed = error
        except Exception as error:  # noqa: BLE001 - each caller raises it
            refused, failed = RefusedBatch(failed=sent or tuple(self._waiting)), error
        again = [each for group in refused.apart for each in group]
        self._apart[:1] = refused.apart
        self._end(refused.failed, failed)
        self._end({*sent}.difference(refused.failed, again), None)
        self._apart = [each for each in self._apart if each[0] in self._waiting]

    def _end(self, ids: Iterable[str], error: Exception | None) -> None:
        for each in ids:
            waiting = self._waiting.pop(each)
            if not waiting.done():
                waiting.set_result(error)
