"""A follower of a stream: it keeps its position over lost connections and lost streams."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from schemas.stream_specs import SECOND_NS
from services.bus.port import Bus, Start, Stored

BATCH: Final = 1024
INACTIVE_SECONDS: Final = 60


def is_followers(config: Mapping[str, Any]) -> bool:
    """Find whether a consumer may be a follower's: one that sends nothing, and does not stay."""
    idle = int(config.get("inactive_threshold", 0))
    sends = config.get("deliver_subject") or config.get("durable_name")
    return not sends and 0 < idle <= INACTIVE_SECONDS * SECOND_NS


class FollowerPosition:
    """Records how far a follower has come in a stream."""

    def __init__(self, bus: Bus, stream: str, start: Start, after: int | datetime | None) -> None:
        """Begin after `after` where it is given, else at `start`."""
        self._bus = bus
        self._stream = stream
        self._start = start
        self.since = after if isinstance(after, datetime) else None
        self.seen = after if isinstance(after, int) else None
        """Everything up to this sequence was seen; None: not known yet."""
        self._created = ""
        """When the stream was created that this sequence belongs to."""

    @property
    def after(self) -> int | datetime:
        """The sequence or the time after which to read on."""
        return self.seen if self.seen is not None else self.since or 0

    async def correct(self) -> None:
        """Fix the first position, and go back where the stream has lost what was seen.

        A stream that was created again, restored or shortened uses the same sequences once more:
        what is stored under them now has not been seen.
        """
        info = await self._bus.admin(f"STREAM.INFO.{self._stream}", {})
        last, created = int(info["state"]["last_seq"]), str(info["created"])
        replaced = self._created not in ("", created)
        self._created = created
        if self.seen is not None and (replaced or last < self.seen):
            whole = replaced or self._start == "last_per_subject"
            self.since = None
            self.seen = (None if self._start == "last_per_subject" else 0) if whole else last
        elif self.seen is None and self.since is None and self._start == "new":
            # Fixed now: nothing is missed if the follower is interrupted before its first message.
            self.seen = last


class EphemeralConsumer:
    """Created again after the last sequence seen whenever it is lost."""

    acks = False
    in_flight_max = BATCH

    def __init__(
        self,
        bus: Bus,
        stream: str,
        filters: tuple[str, ...],
        start: Start,
        after: int | datetime | None,
        new_name: Callable[[], str],
    ) -> None:
        """Follow `filters` of `stream`, from `after` where it is given, else from `start`."""
        self._bus = bus
        self._stream = stream
        self._filters = filters
        self._start = start
        self._new_name = new_name
        self._position = FollowerPosition(bus, stream, start, after)

    async def prepare(self) -> str:
        """Create the consumer, and return its place; an old one dies of inactivity."""
        name = self._new_name()
        config: dict[str, Any] = {
            "name": name,
            "filter_subjects": list(self._filters),
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "max_deliver": 1,
            "inactive_threshold": INACTIVE_SECONDS * SECOND_NS,
            "deliver_policy": self._start,
        }
        await self._position.correct()
        if self._position.seen is not None:
            config["deliver_policy"] = "by_start_sequence"
            config["opt_start_seq"] = self._position.seen + 1
        elif self._position.since is not None:
            config["deliver_policy"] = "by_start_time"
            config["opt_start_time"] = self._position.since.astimezone(UTC).isoformat()
        await self._bus.admin(
            f"CONSUMER.CREATE.{self._stream}.{name}",
            {"stream_name": self._stream, "config": config, "action": "create"},
        )
        return f"{self._stream}.{name}"

    def saw(self, stored: Stored) -> bool:
        """Skip what came before already, over a re-creation."""
        if stored.sequence <= (self._position.seen or 0):
            return False
        self._position.seen = stored.sequence
        return True
