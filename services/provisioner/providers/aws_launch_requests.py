"""Launches EC2 instances: those that wait at one moment, for the same, go in one request.

EC2 numbers the instances of a request (`AmiLaunchIndex`). Every instance carries one tag for each
launch of its request, and its index says which of them it is, from the first moment on. Names of
its own come afterwards. `launch_batches` says why a repetition launches nothing twice.

Launches with different user data share no request: user data holds a node's first credentials,
which the other machines of its request could read.

Source: the EC2 API reference (RunInstances), and the user guide on request throttling, which counts
requests and recommends few with many instances.
"""

import asyncio
import hashlib
import logging
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from schemas.lease_records import BatchedLaunch
from services.provisioner.instances.instance_tags import NODE_TAG, TOKEN_TAG
from services.provisioner.provider_client.launch_batches import Batch, LaunchBatches
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.aws_clients import AwsClients, described

log = logging.getLogger(__name__)

LAUNCHES_PER_REQUEST_MAX: Final = 20
TAGS_MAX: Final = 50
"""Of an EC2 instance."""
BATCH_TAG: Final = "navarch-launch-"
"""And the index of a launch: its node and its token."""
NAME_TAG: Final = "Name"
OWN_TAGS: Final = (NAME_TAG, NODE_TAG, TOKEN_TAG)
MAY_BE_TOO_MANY: Final = ("CAPACITY", "QUOTA")
"""Kinds of refusals after which fewer are tried."""
ADDRESSES: Final = "InsufficientFreeAddressesInSubnet"
"""The subnet may have some for fewer."""
ALIVE: Final = ("pending", "running", "stopping", "stopped")
UNRECORDED: Final = "what EC2 answered could not be recorded"
LOOK_FOR_IT: Final = ("IdempotentInstanceTerminated", "IdempotentParameterMismatch")
"""Refusals of a request that was made before; its other instances may run."""


Ec2Instance = Mapping[str, Any]
"""As EC2 describes it."""
Answers = Mapping[str, Ec2Instance | Exception]
"""Launch -> its instance, or why it has none."""

# --- requests and answers: pure ------------------------------------------------------------------


class LaunchParameters(NamedTuple):
    """Holds what one launch requests of EC2."""

    common: Mapping[str, Any]
    """RunInstances' parameters, except counts, client token and tags."""
    shared_tags: Mapping[str, str]
    """Those that other launches have as well."""

    @property
    def shape(self) -> str:
        """Return a digest of what launches of one request have in common."""
        both = msgspec.json.encode(self, order="deterministic")
        return hashlib.sha256(both).hexdigest()

    @property
    def launches_max(self) -> int:
        """Return how many launches one request may make."""
        room = TAGS_MAX - len(self.shared_tags) - len(OWN_TAGS)
        return max(1, min(LAUNCHES_PER_REQUEST_MAX, room))

    def request(self, batch: Batch) -> dict[str, Any]:
        """Return RunInstances' parameters for a batch."""
        several = {
            f"{BATCH_TAG}{index}": f"{each.node} {each.token}"
            for index, each in enumerate(batch.launches)
        }
        own = own_tags(batch.launches[0]) if len(batch.launches) == 1 else several
        tags = {**self.shared_tags, **own}
        kinds = ("instance", "volume")
        return {
            **self.common,
            "MinCount": 1,
            "MaxCount": len(batch.launches),
            "ClientToken": batch.request,
            "TagSpecifications": [{"ResourceType": kind, "Tags": tag_list(tags)} for kind in kinds],
        }


def shared_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return those of a launch's tags that other launches have as well."""
    return {key: each for key, each in tags.items() if key not in OWN_TAGS}


def own_tags(launch: BatchedLaunch) -> dict[str, str]:
    """The tags that an instance shares with no other."""
    return {NAME_TAG: launch.node, NODE_TAG: launch.node, TOKEN_TAG: launch.token}


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags as EC2 takes them, in a fixed order; it takes no empty ones."""
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items()) if value]


def tags_of_instance(made: Mapping[str, Any]) -> dict[str, str]:
    """Return an instance's tags, with those of its launch in place of all of its request."""
    tags = {each["Key"]: each["Value"] for each in made.get("Tags", ())}
    mine = tags.get(f"{BATCH_TAG}{made.get('AmiLaunchIndex', 0)}", "")
    node, _, token = mine.partition(" ")
    own = {NODE_TAG: node, TOKEN_TAG: token} if mine else {}
    return own | {key: value for key, value in tags.items() if not key.startswith(BATCH_TAG)}


def says_nothing_made(batch: Batch, error: ProviderError, *, repeated: bool) -> bool:
    """Return whether a refusal says that a request for several has launched nothing anywhere.

    EC2 refuses by its rate, and for lack of rights, before it looks whether it knows the token:
    another replica may have made the request while this one hung.
    """
    if len(batch.launches) == 1 or error.kind == "THROTTLE":
        return False
    if error.kind == "AUTH":
        return not repeated
    return error.code == ADDRESSES or not error.rule.in_doubt


def may_be_too_many(error: ProviderError) -> bool:
    """Return whether EC2 may launch fewer than it has refused."""
    return error.kind in MAY_BE_TOO_MANY or error.code == ADDRESSES


def unnamed(made: Ec2Instance) -> BatchedLaunch | None:
    """The launch of an instance that has no tags of its own yet; None: it has, or had them always.

    Its claim is not known.
    """
    tags = {each["Key"] for each in made.get("Tags", ())}
    if NODE_TAG in tags or not any(each.startswith(BATCH_TAG) for each in tags):
        return None
    own = tags_of_instance(made)
    node, token = own.get(NODE_TAG, ""), own.get(TOKEN_TAG, "")
    return BatchedLaunch(launch="", node=node, token=token) if node else None


def answers_of(batch: Batch, instances: Iterable[Ec2Instance]) -> Answers:
    """Launch -> its instance; CAPACITY where EC2 has launched fewer than requested."""
    made = {each.get("AmiLaunchIndex", 0): each for each in instances}
    few = f"EC2 launched {len(made)} of {len(batch.launches)} instances of one request"
    lacks = ProviderError("CAPACITY", few)
    return {each.launch: made.get(index, lacks) for index, each in enumerate(batch.launches)}


# --- requests ------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Waiting:
    """A launch that waits for its request."""

    launch: BatchedLaunch
    parameters: LaunchParameters
    answer: "asyncio.Future[Ec2Instance | Exception | None]"
    """None: the launch was not in the request, and asks again."""


@dataclass(slots=True)
class _Request:
    """A request that is made for some of a queue."""

    has_slot: bool = False
    waiting: list[_Waiting] = field(default_factory=list)
    batch: Batch | None = None


@dataclass(slots=True)
class _Queue:
    """Launches with the same parameters."""

    shape: str
    waiting: list[_Waiting] = field(default_factory=list)
    awaits_slot: bool = False
    """One request at a time waits for its slot; those that have theirs run beside each other."""

    def take(self, launches_max: int) -> list[_Waiting]:
        """Remove and return those that waited longest."""
        taken, self.waiting = self.waiting[:launches_max], self.waiting[launches_max:]
        return taken


class _NothingToRequestError(Exception):
    """Other replicas have claimed all launches of a request, or their callers have gone."""


class LaunchRequests:
    """Sends the launches of one account in one region."""

    def __init__(self, clients: AwsClients, batches: LaunchBatches) -> None:
        self._clients = clients
        self._batches = batches
        self._queues: dict[str, _Queue] = {}
        self._repeated: dict[str, asyncio.Task[Answers]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._naming: set[str] = set()
        """Instances that are given their names."""
        self._closed = False

    async def launch(self, launch: BatchedLaunch, parameters: LaunchParameters) -> Ec2Instance:
        """Return EC2's instance of a launch, made now or before."""
        made: Ec2Instance | Exception | None
        while True:
            if (batch := await self._batches.of(launch)) is not None:
                made = (await self._repeat(batch, parameters))[launch.launch]
            else:
                made = await self._wait(launch, parameters)
            if isinstance(made, Exception):
                raise made
            if made is not None:
                return made

    async def close(self) -> None:
        """Cancel all requests, and all who wait."""
        self._closed = True
        for queue in self._queues.values():
            for waiting in queue.take(len(queue.waiting)):
                waiting.answer.cancel()
        tasks: list[asyncio.Task[Any]] = [*self._tasks, *self._repeated.values()]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- a request that was made before ---

    async def _repeat(self, batch: Batch, parameters: LaunchParameters) -> Answers:
        """Make a request again, once for all of its launches that are repeated here."""
        if batch.request not in self._repeated:
            task = asyncio.create_task(self._request(batch, parameters))
            self._repeated[batch.request] = task
            task.add_done_callback(lambda _: self._repeated.pop(batch.request))
        # Shielded: one launch that is cancelled must not take the answer from the others.
        return await asyncio.shield(self._repeated[batch.request])

    async def _request(self, batch: Batch, parameters: LaunchParameters) -> Answers:
        try:
            answer = await self._clients.call("ec2", "run_instances", **parameters.request(batch))
        except ProviderError as error:
            if len(batch.launches) == 1 or error.code not in LOOK_FOR_IT:
                raise await self._noted(batch, error, repeated=True) from error.__cause__
            return await self._take(batch, await self._made_before(batch))
        return await self._take(batch, answer["Instances"])

    async def _made_before(self, batch: Batch) -> list[Ec2Instance]:
        """What still runs of a request that EC2 does not repeat, as one of its instances ended."""
        wanted = [
            {"Name": "client-token", "Values": [batch.request]},
            {"Name": "instance-state-name", "Values": list(ALIVE)},
        ]
        return described(await self._clients.call("ec2", "describe_instances", Filters=wanted))

    # --- a new request ---

    async def _wait(
        self, launch: BatchedLaunch, parameters: LaunchParameters
    ) -> Ec2Instance | Exception | None:
        shape = parameters.shape
        queue = self._queues.setdefault(shape, _Queue(shape))
        waiting = _Waiting(launch, parameters, asyncio.get_running_loop().create_future())
        queue.waiting.append(waiting)
        self._start(queue)
        try:
            return await waiting.answer
        finally:
            # A caller that is cancelled before the request is made is not in it.
            if waiting in queue.waiting:
                queue.waiting.remove(waiting)

    def _start(self, queue: _Queue) -> None:
        if queue.awaits_slot or self._closed:
            return
        if not queue.waiting:
            self._queues.pop(queue.shape, None)
            return
        queue.awaits_slot = True
        self._run(self._send(queue))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, queue: _Queue) -> None:
        """Make one request for those that wait when it has its slot."""
        request = _Request()
        answers: Answers = {}
        try:
            fill = partial(self._fill, request, queue)
            answer = await self._clients.call_with("ec2", "run_instances", fill)
            assert request.batch is not None
            answers = await self._take(request.batch, answer["Instances"])
        except _NothingToRequestError:
            pass
        except Exception as error:  # noqa: BLE001 - each caller raises it
            if not request.has_slot:  # all have waited for it
                request.waiting = queue.take(len(queue.waiting))
            answers = await self._failed(request, error)
        finally:
            for each in request.waiting:
                if self._closed:
                    each.answer.cancel()
                elif not each.answer.done():
                    each.answer.set_result(answers.get(each.launch.launch))
            if not request.has_slot:
                queue.awaits_slot = False
                self._start(queue)

    async def _fill(self, request: _Request, queue: _Queue) -> dict[str, Any]:
        """Choose what is launched, at the first slot; a later attempt repeats the request."""
        if not request.has_slot:
            request.has_slot, queue.awaits_slot = True, False
            if queue.waiting:
                request.waiting = queue.take(queue.waiting[0].parameters.launches_max)
            self._start(queue)
            if request.waiting:
                launches = [each.launch for each in request.waiting]
                request.batch = await self._batches.claim(launches)
        if request.batch is None:
            raise _NothingToRequestError
        return request.waiting[0].parameters.request(request.batch)

    # --- what comes of a request ---

    async def _failed(self, request: _Request, error: Exception) -> Answers:
        """Return the failure of each launch; those without one ask again."""
        batch, failed = request.batch, [each.launch for each in request.waiting]
        if batch is not None and isinstance(error, ProviderError):
            error = await self._noted(batch, error, repeated=False)
            failed = list(batch.launches)
            if len(failed) > 1 and may_be_too_many(error):
                failed = failed[len(failed) // 2 :]
        return dict.fromkeys((each.launch for each in failed), error)

    async def _noted(self, batch: Batch, error: ProviderError, *, repeated: bool) -> ProviderError:
        """Record what a refusal says of a request; what is not recorded is not certain."""
        if not says_nothing_made(batch, error, repeated=repeated):
            return error
        if await self._batches.record_refusal(batch, batch.launches):
            return error
        return ProviderError("TRANSIENT", f"{UNRECORDED}: {error.message}")

    async def _take(self, batch: Batch, instances: Iterable[Ec2Instance]) -> Answers:
        """Free the launches that EC2 has not made, and name the others; TRANSIENT if it cannot."""
        answers = answers_of(batch, instances)
        if len(batch.launches) == 1:
            return answers
        made = {each: answers[each.launch] for each in batch.launches}
        self._name(
            {
                found["InstanceId"]: launch
                for launch, found in made.items()
                if not isinstance(found, Exception)
            }
        )
        missing = [each for each, found in made.items() if isinstance(found, Exception)]
        if missing and not await self._batches.record_refusal(batch, missing):
            raise ProviderError("TRANSIENT", f"{UNRECORDED}: EC2 launched fewer than requested")
        return answers

    def name(self, listed: Iterable[Ec2Instance]) -> None:
        """Name what is listed without a name: the process that launched it may have ended."""
        launches = {each["InstanceId"]: unnamed(each) for each in listed}
        self._name({key: each for key, each in launches.items() if each is not None})

    def _name(self, launches: Mapping[str, BatchedLaunch]) -> None:
        new = {key: each for key, each in launches.items() if key not in self._naming}
        if new and not self._closed:
            self._naming |= new.keys()
            self._run(self._name_each(new))

    async def _name_each(self, launches: Mapping[str, BatchedLaunch]) -> None:
        """Give each instance the tags that it would have had alone.

        Of what runs here nothing depends on them; earlier releases know no others.
        """
        try:
            for key, launch in launches.items():
                tags = tag_list(own_tags(launch))
                try:
                    await self._clients.call("ec2", "create_tags", Resources=[key], Tags=tags)
                except ProviderError as error:
                    about = {"instance": key, "reason": str(error)}
                    log.warning("has the tags of its request until the next list", extra=about)
        finally:
            self._naming -= launches.keys()
