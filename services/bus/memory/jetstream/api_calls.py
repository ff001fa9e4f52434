"""The server's own API (`STREAM.INFO.EVENTS`), as far as Navarch calls it. Pure."""

import base64
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import product
from typing import Any, Final

import msgspec

from services.bus.memory.jetstream.consumer_state import ConsumerConfig, ConsumerState, read_config
from services.bus.memory.jetstream.server_state import ConsumerPlace, ServerState
from services.bus.memory.jetstream.stream_state import StreamConfig, StreamState
from services.bus.protocol.subject_filters import overlaps
from services.primitives.errors import Refused, Unavailable

STREAM_NOT_FOUND: Final = 10059
CONSUMER_NOT_FOUND: Final = 10014
MESSAGE_NOT_FOUND: Final = 10037
STREAM_EXISTS: Final = 10058
STREAM_FIXED: Final = 10052
STREAM_OVERLAPS: Final = 10065
CONSUMER_FIXED: Final = 10012
QUEUE_NEEDS_ACKS: Final = 10084
QUEUE_OVERLAPS: Final = 10100
QUEUE_FROM_BEGINNING: Final = 10101
FIXED: Final = ("storage", "retention")
"""Options of a stream that cannot be changed."""
FOR_EVER: Final = ("deny_delete", "allow_msg_ttl", "allow_msg_schedules")
"""Options of a stream that cannot be taken back."""
CONSUMER_FIXED_OPTIONS: Final = ("deliver_policy", "ack_policy", "opt_start_seq", "replay_policy")

Json = dict[str, Any]
Call = Callable[[ServerState, list[str], Json, datetime], Json]


class _RefusalError(Exception):
    """What the server says instead of an answer."""

    def __init__(self, description: str, code: int) -> None:
        super().__init__(f"{description} ({code})")
        self.code = code


def call(state: ServerState, name: str, body: Json, now: datetime) -> Json:
    """Answer one call; Refused carries the server's code."""
    tokens = name.split(".")
    for length in range(len(tokens), 0, -1):
        found = _CALLS.get(".".join(tokens[:length]))
        if found is not None:
            try:
                return found(state, tokens[length:], body, now)
            except _RefusalError as refusal:
                raise Refused(f"{name}: {refusal}", refusal.code) from None
    raise Unavailable(f"$JS.API.{name}: no answer")


def _stream(state: ServerState, name: str) -> StreamState:
    if name not in state.streams:
        raise _RefusalError("stream not found", STREAM_NOT_FOUND)
    return state.streams[name]


def _consumer(state: ServerState, stream: str, name: str) -> ConsumerState:
    _stream(state, stream)
    if name not in state.consumers[stream]:
        raise _RefusalError("consumer not found", CONSUMER_NOT_FOUND)
    return state.consumers[stream][name]


# --- streams -------------------------------------------------------------------------------------


def _stream_create(state: ServerState, tokens: list[str], body: Json, now: datetime) -> Json:
    name = tokens[0]
    found = state.streams.get(name)
    if found is None:
        config = _stream_config(state, name, body)
        found = StreamState(config=config, asked=dict(body), created=now)
        state.add_stream(found)
    elif found.asked != body:
        text = "stream name already in use with a different configuration"
        raise _RefusalError(text, STREAM_EXISTS)
    return found.info()


def _stream_config(state: ServerState, name: str, body: Json) -> StreamConfig:
    config = msgspec.convert({**body, "name": name}, StreamConfig)
    others = [each.config.subjects for at, each in state.streams.items() if at != name]
    if any(overlaps(*pair) for other in others for pair in product(config.subjects, other)):
        raise _RefusalError("subjects overlap with an existing stream", STREAM_OVERLAPS)
    return config


def _stream_update(state: ServerState, tokens: list[str], body: Json, now: datetime) -> Json:
    found = _stream(state, tokens[0])
    fixed = [each for each in FIXED if body.get(each) != found.asked.get(each)]
    fixed += [each for each in FOR_EVER if found.asked.get(each) and not body.get(each)]
    for option in fixed:
        raise _RefusalError(f"stream configuration update can not change {option}", STREAM_FIXED)
    found.reconfigure(_stream_config(state, tokens[0], body), dict(body), now)
    state.add_stream(found)
    return found.info()


def _stream_info(state: ServerState, tokens: list[str], body: Json, now: datetime) -> Json:
    found = _stream(state, tokens[0]).info(body.get("subjects_filter", ""))
    return {**found, "ts": now.isoformat()}


def _stream_delete(state: ServerState, tokens: list[str], body: Json, now: datetime) -> Json:
    del body, now
    _stream(state, tokens[0])
    state.drop_stream(tokens[0])
    return {"success": True}


def _stream_purge(state: ServerState, tokens: list[str], body: Json, now: datetime) -> Json:
    del now
    keep, before = int(body.get("keep", 0)), int(body.get("seq", 0))
    _stream(state, tokens[0])
    purged = state.purge(tokens[0], body.get("filter", ""), keep, before)
    return {"success": True, "purged": purged}


def _stream_names(state: ServerState, tokens: list[str], body: Json, now: datetime) -> Json:
    del tokens, body, now
    return {"streams": list(state.streams), "total": len(state.streams)}


def _message_get(state: ServerState, tokens: list[str], body: Json, now: datetime) -> Json:
    del now
    stream = _stream(state, tokens[0])
    if "last_by_subj" in body:
        sequence = stream.index.last(body["last_by_subj"])
    elif "next_by_subj" in body:
        after = int(body.get("seq", 1)) - 1
        sequence = next(iter(stream.sequences(body["next_by_subj"], after)), 0)
    else:
        sequence = int(body["seq"])
    stored = stream.messages.get(sequence)
    if stored is None:
        raise _RefusalError("no message found", MESSAGE_NOT_FOUND)
    message: Json = {
        "subject": stored.subject,
        "seq": stored.sequence,
        "data": base64.b64encode(stored.data).decode("ascii"),
        "time": stored.time.isoformat(),
    }
    if stored.headers:
        lines = ["NATS/1.0", *(f"{name}: {value}" for name, value in stored.headers.items())]
        coded = base64.b64encode("\r\n".join([*lines, "", ""]).encode())
        message["hdrs"] = coded.decode("ascii")
    return {"message": message}


# --- consumers -----------------------------------------------------------------------------------


def _consumer_create(state: ServerState, tokens: list[str], body: Json, now: datetime) -> Json:
    stream, name = tokens[0], tokens[1]
    held = _stream(state, stream)
    asked = dict(body["config"])
    config = read_config(asked)
    found = state.consumers[stream].get(name)
    if found is not None:
        for option in CONSUMER_FIXED_OPTIONS:
            if asked.get(option) != found.asked.get(option):
                raise _RefusalError(
                    f"{option.replace('_', ' ')} can not be updated", CONSUMER_FIXED
                )
    if held.config.retention == "workqueue":
        _check_queue(state.consumers[stream], name, config)
    if found is None:
        found = ConsumerState(config=config, asked=asked, created=now)
        state.add_consumer(stream, found)
    else:
        state.reconfigure_consumer(ConsumerPlace(stream, name), config, asked, now)
    return found.info(held)


def _check_queue(others: Mapping[str, ConsumerState], name: str, config: ConsumerConfig) -> None:
    """Refuse a second consumer of the same messages of a work queue, and one that skips some."""
    if config.ack_policy != "explicit":
        raise _RefusalError("workqueue stream requires explicit ack", QUEUE_NEEDS_ACKS)
    if config.deliver_policy != "all":
        raise _RefusalError(
            "consumer must be deliver all on workqueue stream", QUEUE_FROM_BEGINNING
        )
    for other in (each.config for at, each in others.items() if at != name):
        if any(overlaps(*pair) for pair in product(config.filters, other.filters)):
            raise _RefusalError("filtered consumer not unique on workqueue stream", QUEUE_OVERLAPS)


def _consumer_info(state: ServerState, tokens: list[str], body: Json, now: datetime) -> Json:
    del body, now
    found = _consumer(state, tokens[0], tokens[1])
    return found.info(state.streams[tokens[0]])


def _consumer_delete(state: ServerState, tokens: list[str], body: Json, now: datetime) -> Json:
    del body, now
    _consumer(state, tokens[0], tokens[1])
    state.drop_consumer(ConsumerPlace(tokens[0], tokens[1]))
    return {"success": True}


def _consumer_names(state: ServerState, tokens: list[str], body: Json, now: datetime) -> Json:
    del body, now
    _stream(state, tokens[0])
    found = list(state.consumers[tokens[0]])
    return {"consumers": found, "total": len(found)}


def _consumer_list(state: ServerState, tokens: list[str], body: Json, now: datetime) -> Json:
    del body, now
    stream = _stream(state, tokens[0])
    found = [each.info(stream) for each in state.consumers[tokens[0]].values()]
    return {"consumers": found, "total": len(found)}


_CALLS: Final[dict[str, Call]] = {
    "STREAM.CREATE": _stream_create,
    "STREAM.UPDATE": _stream_update,
    "STREAM.INFO": _stream_info,
    "STREAM.DELETE": _stream_delete,
    "STREAM.PURGE": _stream_purge,
    "STREAM.NAMES": _stream_names,
    "STREAM.MSG.GET": _message_get,
    "CONSUMER.CREATE": _consumer_create,
    "CONSUMER.DURABLE.CREATE": _consumer_create,
    "CONSUMER.INFO": _consumer_info,
    "CONSUMER.DELETE": _consumer_delete,
    "CONSUMER.NAMES": _consumer_names,
    "CONSUMER.LIST": _consumer_list,
}
