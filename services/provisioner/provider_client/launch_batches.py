"""Decides which launches one request makes, for clouds that launch several instances with one.

A repeated launch must repeat its request exactly, at whatever replica: the cloud recognises it by
its token, and refuses other parameters under the same token. So each launch claims the request in
which it is made, and the request records its launches, before it is sent:

- Of two replicas that claim a launch one succeeds.
- A request without a record was not sent: a replica that repeats a launch of it writes an empty
  record, and then the request is never sent.
- A request that the cloud has refused as a whole gets an empty record, so that a repetition of one
  launch does not make the others as well, which may be made elsewhere by then.

A request that leaves its sender long after another replica has seen it refused may launch what is
launched elsewhere by then. As with a launch that another zone has taken over, what is surplus is
removed.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar
from uuid import uuid4

from schemas.lease_records import BatchedLaunch, LaunchBatchRecord, LaunchClaimRecord
from schemas.messages import Record
from schemas.topology import LEASES
from services.bus.port import Bus
from services.bus.record_bucket import RecordBucket, Versioned, retry_conflicts
from services.primitives.errors import BusError, Conflict
from services.provisioner.provider_client.provider_errors import ProviderError

DIGEST_CHARS: Final = 12
RECORD_TTL_SECONDS: Final = 86_400
"""An attempt of a launch that comes later finds the instance in the cloud's list."""

R = TypeVar("R", bound=Record)


class Batch(NamedTuple):
    """Holds one request, and the launches that it makes."""

    request: str
    """Its token; one launch alone has the launch's own."""
    launches: tuple[BatchedLaunch, ...]
    """In the order of the cloud's launch index."""


class Records(Protocol[R]):
    """Records of one kind, written under their revision."""

    async def read(self, key: str) -> Versioned[R]:
        """Return the record and its revision."""

    async def write(self, key: str, record: R, revision: int) -> int:
        """Write over a revision (0: there is no record); else Conflict."""


class LocalRecords(dict[str, Versioned[R]]):
    """Keeps records of this process alone."""

    async def read(self, key: str) -> Versioned[R]:
        """Return the record and its revision."""
        return self.get(key, Versioned(None, 0))

    async def write(self, key: str, record: R, revision: int) -> int:
        """Write over a revision; else Conflict."""
        if revision != (await self.read(key)).revision:
            raise Conflict(key)
        self[key] = Versioned(record, revision + 1)
        return revision + 1


class LaunchBatches:
    """The requests of one provider's launches; TRANSIENT where the bus does not answer."""

    def __init__(
        self,
        provider: str,
        claims: Records[LaunchClaimRecord],
        batches: Records[LaunchBatchRecord],
        new_token: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        """`new_token`: names a request for several launches."""
        # Another provider may be another account, which knows nothing of this one's requests.
        self._digest = hashlib.sha256(provider.encode()).hexdigest()[:DIGEST_CHARS]
        self._claims = claims
        self._batches = batches
        self._new_token = new_token

    async def of(self, launch: BatchedLaunch) -> Batch | None:
        """Return the request that makes a launch; None: none does."""
        try:
            return await retry_conflicts(lambda: self._of(launch), self._claim_key(launch))
        except BusError as error:
            raise _unknown(error) from error

    async def claim(self, launches: Sequence[BatchedLaunch]) -> Batch | None:
        """Return a new request for those of these launches that none makes; None: each has one."""
        request = launches[0].launch if len(launches) == 1 else self._new_token()
        try:
            won = await asyncio.gather(*(self._claim(each, request) for each in launches))
            claimed = tuple(each for each, is_won in zip(launches, won, strict=True) if is_won)
            if not claimed:
                return None
            if request != claimed[0].launch:
                record = LaunchBatchRecord(launches=claimed)
                await self._batches.write(self._batch_key(request), record, 0)
        except Conflict:
            return None  # a replica that repeats one of them has prevented it
        except BusError as error:
            raise _unknown(error) from error
        return Batch(request, claimed)

    async def record_refusal(self, batch: Batch, missing: Sequence[BatchedLaunch]) -> bool:
        """Free the launches that a request has certainly not made, to be made by another one.

        False: the bus did not answer. To request them elsewhere is not safe then.
        """
        try:
            if len(missing) == len(batch.launches) > 1:
                await self._close(batch.request)
            elif len(batch.launches) > 1:
                await asyncio.gather(*(self._free(each, batch.request) for each in missing))
        except BusError:
            return False
        return True

    async def _of(self, launch: BatchedLaunch) -> Batch | None:
        claim = (await self._claims.read(self._claim_key(launch))).record
        if claim is None or not claim.request:
            return None
        if claim.request == launch.launch:
            return Batch(claim.request, (launch,))
        record = (await self._batches.read(self._batch_key(claim.request))).record
        if record is None:
            await self._batches.write(self._batch_key(claim.request), LaunchBatchRecord(), 0)
        elif any(each.launch == launch.launch for each in record.launches):
            return Batch(claim.request, record.launches)
        await self._free(launch, claim.request)
        return None

    async def _claim(self, launch: BatchedLaunch, request: str) -> bool:
        key = self._claim_key(launch)
        claim, revision, _ = await self._claims.read(key)
        if claim is not None and claim.request:
            return False
        try:
            await self._claims.write(key, LaunchClaimRecord(request=request), revision)
        except Conflict:
            return False
        return True

    async def _free(self, launch: BatchedLaunch, request: str) -> None:
        key = self._claim_key(launch)
        claim, revision, _ = await self._claims.read(key)
        if claim is not None and claim.request == request:
            await self._claims.write(key, LaunchClaimRecord(request=""), revision)

    async def _close(self, request: str) -> None:
        key = self._batch_key(request)
        await self._batches.write(
            key, LaunchBatchRecord(), (await self._batches.read(key)).revision
        )

    def _claim_key(self, launch: BatchedLaunch) -> str:
        return f"provisioner.claim-{self._digest}-{launch.launch}"

    def _batch_key(self, request: str) -> str:
        return f"provisioner.batch-{self._digest}-{request}"


MakeLaunchBatches = Callable[[str], LaunchBatches]
"""Makes those of a provider, by its name."""


def shared_launch_batches(bus: Bus, provider: str) -> LaunchBatches:
    """Return the requests that all replicas share."""
    return LaunchBatches(
        provider,
        RecordBucket(bus, LEASES, LaunchClaimRecord, lambda _: RECORD_TTL_SECONDS),
        RecordBucket(bus, LEASES, LaunchBatchRecord, lambda _: RECORD_TTL_SECONDS),
    )


def local_launch_batches(provider: str) -> LaunchBatches:
    """Return the requests of this process, which no replica shares."""
    claims, batches = LocalRecords[LaunchClaimRecord](), LocalRecords[LaunchBatchRecord]()
    return LaunchBatches(provider, claims, batches)


def _unknown(error: BusError) -> ProviderError:
    return ProviderError("TRANSIENT", f"how this launch is requested could not be stored: {error}")
