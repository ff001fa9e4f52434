"""Declares what a stream, bucket or durable is made of, and its form in the server's API."""

from typing import Any, Final

import msgspec

from schemas import subjects

SECOND_NS: Final = 1_000_000_000
DAY_SECONDS: Final = 86_400
MESSAGE_BYTES_MAX: Final = 1_048_576
DUPLICATE_WINDOW_SECONDS: Final = 600


class StreamSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Declares one stream of the server."""

    name: str
    description: str
    subjects: tuple[str, ...]
    retention: str = "limits"
    discard: str = "old"
    age_max_seconds: float = 0
    bytes_max: int = -1
    messages_per_subject_max: int = -1
    message_bytes_max: int = MESSAGE_BYTES_MAX
    duplicate_window_seconds: float = DUPLICATE_WINDOW_SECONDS
    schedules: bool = False
    message_ttl: bool = False
    delete_marker_ttl_seconds: float = 0
    rollup: bool = False
    deny_delete: bool = False
    compression: str = "none"
    replicas_one: bool = False
    """True: one replica in any cluster, because the stream is expendable."""
    in_memory: bool = False
    """True: lost when every server restarts; who writes it and who reads it must bear that."""
    unsynced: bool = False
    """True: acknowledged before it is on disk; a power cut loses the last writes."""
    live: bool = False
    """Whether the server publishes a copy of each stored message under `subjects.LIVE`."""
    full_subject_refuses: bool = False
    """True: what is beyond `messages_per_subject_max` is refused; False: the oldest goes for it."""
    sources: tuple[str, ...] = ()
    """Streams of which the server copies each message into this one, under its own subject."""

    def config(self, replicas: int) -> dict[str, Any]:
        """Return the server's JSON form (`$JS.API.STREAM.CREATE`)."""
        config: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "subjects": list(self.subjects),
            "retention": self.retention,
            "discard": self.discard,
            "storage": "memory" if self.in_memory else "file",
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": self.bytes_max,
            "max_age": int(self.age_max_seconds * SECOND_NS),
            "max_msgs_per_subject": self.messages_per_subject_max,
            "max_msg_size": self.message_bytes_max,
            "duplicate_window": int(self.duplicate_window_seconds * SECOND_NS),
            "num_replicas": 1 if self.replicas_one else replicas,
            "no_ack": False,
            "deny_delete": self.deny_delete,
            "deny_purge": False,
            "allow_rollup_hdrs": self.rollup,
            "allow_direct": True,
            "compression": self.compression,
        }
        if self.full_subject_refuses:
            config["discard_new_per_subject"] = True
        if self.sources:
            config["sources"] = [{"name": each} for each in self.sources]
        if self.unsynced:
            config["persist_mode"] = "async"
        if self.live:
            config["republish"] = {"src": ">", "dest": f"{subjects.LIVE}.>"}
        if self.schedules:
            config["allow_msg_schedules"] = True
        if self.message_ttl:
            config["allow_msg_ttl"] = True
        if self.delete_marker_ttl_seconds:
            config["subject_delete_marker_ttl"] = int(self.delete_marker_ttl_seconds * SECOND_NS)
        return config


class BucketSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Declares one key-value bucket and its only writer."""

    name: str
    description: str
    writer: str
    ends: str
    """When an entry is removed."""
    marker_ttl_seconds: float = 3600
    """How long the marker of a removed key is kept for disconnected watchers. 0: there are none,
    and no message can remove others, as the header `Nats-Rollup` does."""
    bytes_max: int = -1
    message_bytes_max: int = MESSAGE_BYTES_MAX
    in_memory: bool = False
    live: bool = False

    def stream(self) -> StreamSpec:
        """Return the stream behind the bucket."""
        return StreamSpec(
            name=f"KV_{self.name}",
            description=self.description,
            subjects=(f"$KV.{self.name}.>",),
            discard="new",
            bytes_max=self.bytes_max,
            messages_per_subject_max=1,
            message_bytes_max=self.message_bytes_max,
            duplicate_window_seconds=120,
            message_ttl=True,
            delete_marker_ttl_seconds=self.marker_ttl_seconds,
            rollup=self.marker_ttl_seconds > 0,  # the server requires it for markers
            deny_delete=True,
            in_memory=self.in_memory,
            live=self.live,
        )


class ObjectBucketSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Declares one object store bucket and its only writer."""

    name: str
    description: str
    writer: str
    age_max_seconds: float
    bytes_max: int

    @property
    def stream_name(self) -> str:
        """Return the name of the stream behind the bucket."""
        return f"OBJ_{self.name}"

    @property
    def ends(self) -> str:
        """Return when an entry is removed, as text."""
        return f"after {self.age_max_seconds / DAY_SECONDS:g} days"

    def stream(self) -> StreamSpec:
        """The stream behind the bucket; it discards the oldest objects."""
        return StreamSpec(
            name=self.stream_name,
            description=self.description,
            subjects=(f"$O.{self.name}.C.>", f"$O.{self.name}.M.>"),
            age_max_seconds=self.age_max_seconds,
            bytes_max=self.bytes_max,
            duplicate_window_seconds=120,
            compression="s2",
            rollup=True,
        )


class DurableSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One durable pull consumer, shared by all replicas of its service."""

    stream: str
    name: str
    description: str
    filters: tuple[str, ...]
    ack_wait_seconds: float = 2.0
    deliveries_max: int = -1
    """The server's own limit; -1: none, since a bus that fails for days must lose nothing."""
    failures_max: int = 20
    """A message whose handler raised this often, without any bus error, is dead-lettered."""
    in_flight_max: int = 256
    """Messages that one process holds at once."""
    ack_pending_max: int = 20_000
    """Messages that all replicas hold at once."""

    def config(self, replicas: int) -> dict[str, Any]:
        """Return the server's JSON form (`$JS.API.CONSUMER.DURABLE.CREATE`)."""
        return {
            "durable_name": self.name,
            "name": self.name,
            "description": self.description,
            "filter_subjects": list(self.filters),
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": int(self.ack_wait_seconds * SECOND_NS),
            "max_deliver": self.deliveries_max,
            "max_ack_pending": self.ack_pending_max,
            "max_waiting": 512,
            "replay_policy": "instant",
            "num_replicas": replicas,
            "mem_storage": False,
        }
