"""Makes the server match `schemas.topology`, reads it back, and names what differs."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from schemas.permissions import SETS_UP
from schemas.stream_specs import DurableSpec, StreamSpec
from schemas.topology import ANSWERS, DURABLES, EVERY_STREAM, GIB, INTAKE, STORED_BYTES_MAX, STREAMS
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import Refused, SetupError, StoreFull, Unavailable

log = logging.getLogger(__name__)
T = TypeVar("T")

NEWER: Final = frozenset({INTAKE.name, ANSWERS.stream().name})
"""Streams that a pool-manager of the release before does not make. EVENTS takes the facts itself
then, and answers are not stored; so no other service waits for them at its start."""
STREAM_NOT_FOUND: Final = 10059
CONSUMER_NOT_FOUND: Final = 10014
STORE_FAILED: Final = "store for consumer"
"""In the server's words where a consumer's files are damaged; the code has other meanings too."""
BEGINNING: Final = ("deliver_policy", "opt_start_seq")
"""Where a durable began; fixed at its creation."""
NO_SUITABLE_PEERS: Final = 10005
"""One of the servers is starting, or has missed a beat under load."""
MORE_REPLICAS_THAN_STREAM: Final = 10126
UPDATES_MAX: Final = 5
"""A replica that starts at the same time may write what it read before this one's update."""
FIXED_STREAM_OPTIONS: Final = ("storage", "persist_mode", "retention", "deny_delete")
"""Options that the server refuses to change on a stream that exists."""
RESTORE_MARK: Final = {"navarch-restore": "unfinished"}
"""In the metadata of the stream that a restore makes first, until it has ended."""
REPLACE_STREAM: Final = (
    "Stop every service, `navarch backup DIRECTORY`, and `navarch restore DIRECTORY` into an empty "
    "server: that makes every stream as this release has it, with what it holds (docs/backup.md)."
)
ROOM: Final = (
    f"all streams together may hold {STORED_BYTES_MAX / GIB:.0f} GiB, and nats-server stores no "
    "more than three quarters of the disk space that was free when it started. Give it a disk with "
    f"{STORED_BYTES_MAX / GIB / 0.75:.0f} GiB free, or set max_file_store in its jetstream section"
)
ATTEMPT_SECONDS: Final = 0.25
ATTEMPTS_MAX: Final = 120
"""A cluster without a meta leader yet answers 'unavailable': half a minute of patience."""


async def set_up(
    bus: Bus,
    clock: Clock,
    *,
    replicas: int,
    durables: Sequence[DurableSpec] | None = None,
    waits: bool = False,
) -> None:
    """Create or update streams, buckets and durables; raise SetupError naming what differs.

    `durables`: only these. `waits`: for the streams, because another service creates them.
    """
    durables = DURABLES if durables is None else durables
    for spec in EVERY_STREAM:
        if waits and spec.name in NEWER:
            continue
        made = partial(_exists, bus, spec) if waits else partial(set_up_stream, bus, spec, replicas)
        await patiently(clock, made)
    for durable in durables:
        await patiently(clock, partial(set_up_durable, bus, durable, replicas))
    log.info("topology set up", extra={"streams": len(EVERY_STREAM), "durables": len(durables)})


async def patiently(
    clock: Clock, call: Callable[[], Awaitable[T]], *, idempotent: bool = True
) -> T:
    """Call again while the server has no leader, or copies to other servers.

    Not `idempotent`: only a call that was refused is repeated, not one whose answer is missing.
    """
    for attempt in range(ATTEMPTS_MAX):
        try:
            return await call()
        except Unavailable:
            if attempt == ATTEMPTS_MAX - 1 or not idempotent:
                raise
        except Refused as error:
            if error.code != NO_SUITABLE_PEERS:
                raise
            if attempt == ATTEMPTS_MAX - 1:
                raise Unavailable(
                    f"{error}; as many servers are needed as nats.replicas says: see nats server "
                    "report jetstream for which of them answer, and start again when all do"
                ) from error
        await clock.sleep(ATTEMPT_SECONDS)
    raise AssertionError("the last attempt returns or raises")


async def stream_config(bus: Bus, spec: StreamSpec) -> dict[str, Any] | None:
    """The configuration of a stream as the server has it; None where there is no such stream."""
    try:
        config: dict[str, Any] = (await bus.admin(f"STREAM.INFO.{spec.name}", {}))["config"]
    except Refused as error:
        if error.code != STREAM_NOT_FOUND:
            raise
        return None
    return config


def is_marked(config: Mapping[str, Any]) -> bool:
    """Return whether a restore into this store has not ended."""
    return RESTORE_MARK.items() <= (config.get("metadata") or {}).items()


def _require_restored(config: Mapping[str, Any]) -> None:
    if is_marked(config):
        raise SetupError(
            "a restore into this store has not ended: run `navarch restore DIRECTORY` again, which "
            "removes what the first attempt has left. Services start on a store that is whole"
        )


async def _exists(bus: Bus, spec: StreamSpec) -> None:
    config = await stream_config(bus, spec)
    if config is None:
        raise Unavailable(
            f"stream {spec.name} does not exist; the {SETS_UP} creates it: start that as well"
        )
    _require_restored(config)


async def set_up_stream(
    bus: Bus, spec: StreamSpec, replicas: int, *, ends_restore: bool = False
) -> None:
    """Create or update one stream; raise SetupError naming what differs.

    `ends_restore`: its mark is removed.
    """
    wanted = spec.config(replicas)
    found = await stream_config(bus, spec)
    if found is None:
        await _give_subjects(bus, spec)
        try:
            found = (await bus.admin(f"STREAM.CREATE.{spec.name}", wanted))["config"]
        except StoreFull as error:
            raise SetupError(f"{error}: {ROOM}") from error
    if ends_restore:
        found = (await bus.admin(f"STREAM.UPDATE.{spec.name}", wanted))["config"]
    _require_restored(found)
    for _ in range(UPDATES_MAX):
        different = differences(wanted, found)
        if not different or any(name in different for name in FIXED_STREAM_OPTIONS):
            break
        found = (await bus.admin(f"STREAM.UPDATE.{spec.name}", wanted))["config"]
        log.info("stream updated", extra={"stream": spec.name, "options": sorted(different)})
    if different := differences(wanted, found):
        raise SetupError(_mismatch("stream", spec.name, different))


async def _give_subjects(bus: Bus, spec: StreamSpec) -> None:
    """Have a stream of an earlier release store no more itself what it is to copy from a new one.

    Nothing stores these messages until the new stream is there: who publishes them tries again.
    """
    for each in STREAMS:
        if spec.name in each.sources and (found := await stream_config(bus, each)) is not None:
            kept = found | {"subjects": list(each.subjects)}
            if differences(kept, found):
                await bus.admin(f"STREAM.UPDATE.{each.name}", kept)


async def set_up_durable(
    bus: Bus, spec: DurableSpec, replicas: int, begin: dict[str, Any] | None = None
) -> None:
    """Create or update a durable; raise SetupError naming what differs.

    `begin`: where it begins, other than at the stream's first message.
    """
    wanted = spec.config(replicas) | (begin or {})
    place = f"{spec.stream}.{spec.name}"
    try:
        answer = await bus.admin(
            f"CONSUMER.DURABLE.CREATE.{place}", {"stream_name": spec.stream, "config": wanted}
        )
    except (Refused, Unavailable) as error:
        # The server calls a change that it refuses unavailable.
        if STORE_FAILED in str(error):
            raise SetupError(
                f"{error}: the files of consumer {spec.name} of stream {spec.stream} are damaged. "
                f"Stop nats-server, remove the folder obs/{spec.name} of that stream in its "
                "store_dir, and start it again: the services create the consumer again"
            ) from error
        if isinstance(error, Refused) and error.code == MORE_REPLICAS_THAN_STREAM:
            # Raised just now: the stream has as many once it is copied to the other servers.
            raise Unavailable(
                f"stream {spec.stream} is still being copied to {replicas} servers, and its "
                f"consumer {spec.name} can have as many replicas only then; look at nats stream "
                f"report {spec.stream} and start again when every replica is current"
            ) from error
        # Some options are fixed at creation; the existing configuration says which.
        try:
            answer = await bus.admin(f"CONSUMER.INFO.{place}", {})
        except Refused:
            answer = {"config": wanted}
        begun = {key: answer["config"].get(key) for key in BEGINNING}
        known = {key: wanted.get(key) for key in BEGINNING}
        if begun["deliver_policy"] == "by_start_sequence" and begun != known:
            # It was created again while a service ran, from where it had come.
            wanted |= begun
            answer = await bus.admin(
                f"CONSUMER.DURABLE.CREATE.{place}", {"stream_name": spec.stream, "config": wanted}
            )
        elif not differences(wanted, answer["config"]):
            raise
    if differences(wanted, answer["config"]):
        # The first answer after a restart of the server has the options of before.
        answer = await bus.admin(f"CONSUMER.INFO.{place}", {})
    if different := differences(wanted, answer["config"]):
        raise SetupError(_mismatch("durable", spec.name, different, spec.stream))


async def set_up_from_now(bus: Bus, spec: DurableSpec, replicas: int) -> None:
    """Create or update a durable; one that is new begins with what is stored from now on."""
    begin = None
    try:
        await bus.admin(f"CONSUMER.INFO.{spec.stream}.{spec.name}", {})
    except Refused as error:
        if error.code != CONSUMER_NOT_FOUND:
            raise
        last = await bus.last_sequence(spec.stream)
        begin = {"deliver_policy": "by_start_sequence", "opt_start_seq": last + 1}
    await set_up_durable(bus, spec, replicas, begin)


class DurablePosition(NamedTuple):
    """Records how far a durable had come."""

    floor: int
    """Everything up to this sequence is settled."""
    created: datetime
    """When the durable was created: a stream that is younger is another one."""


async def restore_durable(
    bus: Bus, spec: DurableSpec, known: DurablePosition | None, replicas: int
) -> int:
    """Create a durable that was deleted, with its stream if that is gone; return its first message.

    It continues where it was, unless its stream is another one, or has lost what was settled.
    """
    stream = next(each for each in STREAMS if each.name == spec.stream)
    await set_up_stream(bus, stream, replicas)
    info = await bus.admin(f"STREAM.INFO.{spec.stream}", {})
    if (
        known is not None
        and stream.retention == "limits"
        and known.created >= datetime.fromisoformat(info["created"])
        and known.floor <= int(info["state"]["last_seq"])
    ):
        await begin_durable(bus, spec, known.floor, replicas)
        return known.floor + 1
    await set_up_durable(bus, spec, replicas)
    return 1


async def begin_durable(bus: Bus, spec: DurableSpec, settled: int, replicas: int) -> None:
    """Create a durable that begins after what is settled."""
    begin = {"deliver_policy": "by_start_sequence", "opt_start_seq": settled + 1}
    await set_up_durable(bus, spec, replicas, begin)


def differences(wanted: dict[str, Any], found: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Options whose value differs: name -> (wanted, found)."""
    different = {}
    for name, value in wanted.items():
        other = found.get(name)
        if _plain(value) != _plain(other):
            different[name] = (value, other)
    return different


def _plain(value: Any) -> Any:
    # The server omits what is false, zero or empty, and calls no limit -1 or 0 as it pleases.
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | dict):
        return tuple(sorted(value, key=str))
    return value or None


def _mismatch(what: str, name: str, different: dict[str, tuple[Any, Any]], stream: str = "") -> str:
    remedy = REPLACE_STREAM
    if stream:
        remedy = f"Remove it (`nats consumer rm {stream} {name}`), then start again."
    parts = [f"{key} is {found!r}, not {wanted!r}" for key, (wanted, found) in different.items()]
    return (
        f"{what} {name} on the server differs and cannot be changed in place: {'; '.join(parts)}. "
        f"{remedy}"
    )
