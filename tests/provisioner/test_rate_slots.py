"""Slots of a rate that replicas share: never above the rate, and a death costs one turn. Pure."""

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.lease_records import RateLimitRecord
from services.provisioner.provider_client import rate_limit

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
REPLICAS = 4
ROUNDING = timedelta(microseconds=2)


@dataclass
class Taker:
    """One replica, where it has got to with its turn."""

    read: tuple[int, rate_limit.NextSlot] | None = None
    """Revision, and what may come next, as it read them."""
    kind: str = ""
    sent: datetime | None = None
    known: datetime = START
    wait: float = 0.0


@dataclass
class Server:
    """The record, the server's clock, and what all replicas did."""

    pace: rate_limit.RequestRate
    now: datetime = START
    revision: int = 0
    record: RateLimitRecord = field(default_factory=RateLimitRecord)
    stored_at: datetime = START
    uses: list[tuple[datetime, str]] = field(default_factory=list)
    takers: list[Taker] = field(default_factory=lambda: [Taker() for _ in range(REPLICAS)])

    def read(self, taker: Taker) -> None:
        """Read the record; a turn that it held is forgotten, as after a death."""
        after = rate_limit.NextSlot()
        if self.revision:
            after = rate_limit.next_slot(self.record, self.stored_at, self.pace)
        taker.read, taker.sent = (self.revision, after), None

    def write(self, taker: Taker, kind: str, lag: float) -> None:
        """Write it by compare-and-set: sent a while before it is stored, known a while after."""
        if taker.read is None or taker.read[0] != self.revision:
            taker.read = None
            return
        self.revision += 1
        self.record, self.stored_at = rate_limit.slot_record(taker.read[1], kind), self.now
        turn = rate_limit.slot_start(self.record, self.stored_at, self.pace)
        taker.kind = kind
        taker.sent = self.now - timedelta(seconds=lag)
        taker.known = self.now + timedelta(seconds=lag)
        taker.wait = (turn - self.stored_at).total_seconds()
        taker.read = None

    def whole(self, taker: Taker, kind: str, lag: float) -> None:
        """A turn from beginning to end, used as late as that; others may come in between."""
        self.read(taker)
        self.write(taker, kind, 0.0)
        self.now += timedelta(seconds=taker.wait + lag)
        self.use(taker)

    def refuse(self) -> None:
        """The provider refuses a request: the record says that the bucket is empty."""
        last = (self.record, self.stored_at) if self.revision else None
        self.revision += 1
        self.record, self.stored_at = rate_limit.throttled_record(last, self.pace), self.now

    def use(self, taker: Taker) -> None:
        """Use the turn, if it has begun and is not over."""
        if taker.sent is None or self.now < taker.known + timedelta(seconds=taker.wait):
            return
        since_sent = (self.now - taker.sent).total_seconds()
        if rate_limit.is_in_time(since_sent, taker.wait, self.pace):
            self.uses.append((self.now, taker.kind))
        taker.sent = None


def pace(interval: float, burst: int = 1) -> rate_limit.RequestRate:
    """Launches are twelve times as seldom, as at Lambda."""
    return rate_limit.RequestRate(
        interval_seconds=interval, burst=burst, slower_seconds={"launch": 12 * interval}
    )


def keeps(moments: list[datetime], rate: rate_limit.RequestRate) -> bool:
    """Return whether no window holds more than the bucket, and what is refilled in it."""
    interval = timedelta(seconds=rate.interval_seconds)
    return all(
        moments[last] - first >= (last - number - rate.burst + 1) * interval - ROUNDING
        for number, first in enumerate(moments)
        for last in range(number + rate.burst, len(moments))
    )


def closest(moments: list[datetime]) -> timedelta:
    """Return the shortest time between two moments."""
    return min((b - a for a, b in itertools.pairwise(moments)), default=timedelta.max)


passes = st.one_of(st.sampled_from([0.0, 0.0, 0.05, 1.0, 1.1, 12.0]), st.floats(0, 15))
whats = st.sampled_from(
    ["read", "call", "launch", "use", "use", "a call", "a call", "a launch", "refused"]
)
acts = st.tuples(st.integers(0, REPLICAS - 1), whats, passes, st.floats(0, 0.2))


@given(
    interval=st.sampled_from([0.05, 1.0, 5.0]),
    burst=st.sampled_from([1, 2, 5, 20]),
    history=st.lists(acts, max_size=100),
)
def test_whatever_the_interleaving_no_window_holds_more_than_the_rate(
    interval: float, burst: int, history: list[tuple[int, str, float, float]]
) -> None:
    """Stale reads, slow answers, late wakings, deaths: the bucket is kept, launches are apart."""
    server = Server(pace(interval, burst))
    for number, what, span, lag in history:
        server.now += timedelta(seconds=span * interval)
        taker = server.takers[number]
        if what == "read":
            server.read(taker)
        elif what == "refused":
            server.refuse()
        elif what == "use":
            server.use(taker)
        elif what.startswith("a "):
            server.whole(taker, "launch" if what == "a launch" else "", lag * interval)
        else:
            server.write(taker, "launch" if what == "launch" else "", lag * interval)
    assert keeps(sorted(at for at, _ in server.uses), server.pace)
    apart = 12 * (timedelta(seconds=interval) - ROUNDING)
    assert closest(sorted(at for at, kind in server.uses if kind)) >= apart


@given(
    interval=st.sampled_from([0.05, 1.0, 5.0]),
    numbers=st.lists(st.integers(0, REPLICAS - 1), min_size=1, max_size=40),
    kinds=st.data(),
)
def test_who_reads_writes_and_uses_without_delay_gets_every_turn(
    interval: float, numbers: list[int], kinds: st.DataObject
) -> None:
    """No slot is lost if no caller is late: every slot is used."""
    server = Server(pace(interval))
    for number in numbers:
        taker = server.takers[number]
        server.read(taker)
        server.write(taker, kinds.draw(st.sampled_from(["", "launch"])), 0.0)
        server.now += timedelta(seconds=taker.wait)
        server.use(taker)
    assert len(numbers) == len(server.uses)


@given(interval=st.sampled_from([0.05, 1.0, 5.0]), dead=st.integers(0, REPLICAS))
def test_a_death_costs_one_turn(interval: float, dead: int) -> None:
    """The next turn comes right after those of the dead, however many died with a turn each."""
    server = Server(pace(interval))
    for number in range(dead):
        server.read(server.takers[number % REPLICAS])
        server.write(server.takers[number % REPLICAS], "", 0.0)
    living = Taker()
    server.read(living)
    server.write(living, "", 0.0)
    assert living.wait == pytest.approx(dead * server.pace.spacing().total_seconds())


@pytest.mark.parametrize(
    ("interval", "burst", "slack", "spacing"),
    [
        (1.0, 1, 0.1, 1.1),
        (12.0, 1, 0.5, 12.5),
        (0.5, 5, 0.5, 0.5),
        (0.1, 50, 0.5, 0.1),
        (0.05, 4, 0.1, 0.05),
        (30.0, 2, 30.0, 30.0),
    ],
)
def test_what_being_late_may_cost(
    interval: float, burst: int, slack: float, spacing: float
) -> None:
    """A tenth of the rate where one comes at a time; of a bucket some tokens, and no rate."""
    rate = rate_limit.RequestRate(interval_seconds=interval, burst=burst)
    assert (slack, spacing) == pytest.approx((rate.slack_seconds, rate.spacing().total_seconds()))


gaps = st.one_of(st.sampled_from([0.0, 0.0, 0.0, 1.0]), st.floats(0, 3))
lates = st.one_of(st.sampled_from([0.0, 0.0, 1.0]), st.floats(0, 1))


@given(
    interval=st.sampled_from([0.05, 0.5, 5.0]),
    burst=st.sampled_from([1, 2, 5, 20]),
    slots=st.lists(st.tuples(gaps, lates), min_size=3, max_size=60),
)
def test_slots_that_are_used_late_exceed_no_bucket(
    interval: float, burst: int, slots: list[tuple[float, float]]
) -> None:
    """Each as late as it may be, in any order: never more than the bucket and what is refilled."""
    server = Server(pace(interval, burst))
    used = []
    for gap, late in slots:
        server.now += timedelta(seconds=gap * interval)
        taker = Taker()
        server.read(taker)
        server.write(taker, "", 0.0)
        wait = taker.wait + late * server.pace.slack_seconds
        used.append(server.now + timedelta(seconds=wait))
    assert keeps(sorted(used), server.pace)


def waits(server: Server, number: int) -> list[float]:
    """Return the waits, in seconds, of so many that come at once."""
    found = []
    for _ in range(number):
        taker = Taker()
        server.read(taker)
        server.write(taker, "", 0.0)
        found.append(round(taker.wait, 6))
    return found


def test_a_full_bucket_is_used_at_once_and_then_its_rate() -> None:
    """A bucket of five keeps one back; an idle one fills again, and no further than full."""
    server = Server(pace(0.5, 5))
    assert [0, 0, 0, 0, 0.5, 1.0] == waits(server, 6)
    server.now += timedelta(seconds=2.0)
    assert [0, 0, 0.5] == waits(server, 3)
    server.now += timedelta(hours=1)
    assert [0, 0, 0, 0, 0.5] == waits(server, 5)


@pytest.mark.parametrize("used", [0, 2, 6])
def test_a_refusal_empties_the_bucket_once(used: int) -> None:
    """Each waits an interval from there, or from the last slot that was taken."""
    server = Server(pace(0.5, 5))
    waits(server, used)
    server.refuse()
    server.refuse()
    first = 1.5 if used == 6 else 0.5
    assert [first, first + 0.5] == waits(server, 2)
    server.now += timedelta(hours=1)
    assert [0, 0, 0, 0, 0.5] == waits(server, 5)


@pytest.mark.parametrize("used", [1, 8])
def test_a_clock_that_is_set_back_stops_no_caller_for_long(used: int) -> None:
    """The slots of the time before are forgotten; the bucket counts as empty."""
    server = Server(pace(0.5, 5))
    server.pace = rate_limit.RequestRate(interval_seconds=0.5, burst=5)
    waits(server, used)
    server.now -= timedelta(hours=1)
    assert [0.5, 1.0, 1.5] == waits(server, 3)
