"""The server's own API (`STREAM.INFO.EVENTS`), as far as Navarch calls it. Pure."""

import base64
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import msgspec

from services.runtime.errors import Refused
from services.simulator.jetstream.consumer import ConsumerState, read_config
from services.simulator.jetstream.state import Place, ServerState
from services.simulator.jetstream.stream import StreamConfig, StreamState

STREAM_NOT_FOUND: Final = 10059
CONSUMER_NOT_FOUND: Final = 10014
MESSAGE_NOT_FOUND: Final = 10037
STREAM_EXISTS: Final = 10058
STREAM_FIXED: Final = 10052
CONSUMER_FIXED: Final = 10012
FIXED: Final = ("storage", "retention", "deny_delete", "deny_purge")
"""Options of a stream that cannot be changed."""
CONSUMER_FIXED_OPTIONS: Final = ("deliver_policy", "ack_policy", "opt_start_seq", "replay_policy")

Json = dict[str, Any]
Call = Callable[[ServerState, list[str], Json, datetime], Json]


def call(state: ServerState, name: str, body: Json, now: datetime) -> Json:
    """Answer one call; Refused carries the server's code."""
    tokens = name.split(".")
    for length in range(len(tokens), 0, -1):
        found = _CALLS.get(".".join(tokens[:length]))
        if found is not None:
            return found(state, tokens[length:], body, now)
    raise Refused(f"{name}: no such call", 0)


def _refuse(what: str, description: str, code: int) -> Refused:
    return Refused(f"{what}: {description} ({code})", code)


def _stream(state: ServerState, name: str) -> StreamState:
    if name not in state.streams:
        raise _refuse(name, "stream not found", STREAM_NOT_FOUND)
    return state.streams[name]


def _consumer(state: ServerState, stream: str, name: str) -> ConsumerState:
    _stream(state, stream)
    if name not in state.consumers[stream]:
        raise _refuse(f"{stream}.{name}", "consumer not found", CONSUMER_NOT_FOUND)
    return state.consumers[stream][name]


# --- streams -------------------------------------------------------------------------------------


def _stream_create(state: ServerState, tokens: list[str], body: Json, now: datetime) -> Json:
    name = tokens[0]
    found = state.streams.get(name)
    if found is None:
        config = msgspec.convert({**body, "name": name}, StreamConfig)
        found = StreamState(config=config, asked=dict(body), created=now)
        state.add_stream(found)
    elif found.asked != body:
        raise _refuse(name, "stream name already in use", STREAM_EXISTS)
    return found.info()


def _stream_update(state: ServerState, tokens: list[str], body: Json, now: datetime) -> Json:
    del now
    found = _stream(state, tokens[0])
    for option in FIXED:
        if option in body and body[option] != found.asked.get(option):
            raise _refuse(tokens[0], f"stream configuration update: {option}", STREAM_FIXED)
    found.config = msgspec.convert({**body, "name": tokens[0]}, StreamConfig)
    found.asked = dict(body)
    state.add_stream(found)
    return found.info()


def _stream_info(state: ServerState, tokens: list[str], body: Json, now: datetime) -> Json:
    del body, now
    return _stream(state, tokens[0]).info()


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
        raise _refuse(tokens[0], "no message found", MESSAGE_NOT_FOUND)
    return {
        "message": {
            "subject": stored.subject,
            "seq": stored.sequence,
            "data": base64.b64encode(stored.data).decode("ascii"),
            "time": stored.time.isoformat(),
        }
    }


# --- consumers -----------------------------------------------------------------------------------


def _consumer_create(state: ServerState, tokens: list[str], body: Json, now: datetime) -> Json:
    stream, name = tokens[0], tokens[1]
    held = _stream(state, stream)
    asked = dict(body["config"])
    found = state.consumers[stream].get(name)
    if found is None:
        found = ConsumerState(config=read_config(asked), asked=asked, created=now)
        state.add_consumer(stream, found)
    else:
        for option in CONSUMER_FIXED_OPTIONS:
            if asked.get(option) != found.asked.get(option):
                raise _refuse(
                    name, f"{option.replace('_', ' ')} can not be updated", CONSUMER_FIXED
                )
        found.reconfigure(read_config(asked), asked)
    return found.info(held)


def _consumer_info(state: ServerState, tokens: list[str], body: Json, now: datetime) -> Json:
    del body, now
    found = _consumer(state, tokens[0], tokens[1])
    return found.info(state.streams[tokens[0]])


def _consumer_delete(state: ServerState, tokens: list[str], body: Json, now: datetime) -> Json:
    del body, now
    _consumer(state, tokens[0], tokens[1])
    state.drop_consumer(Place(tokens[0], tokens[1]))
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
