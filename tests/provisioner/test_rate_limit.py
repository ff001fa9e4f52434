"""Calls kept apart over all replicas: never above the rate, and a death costs one turn."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.duration import Duration
from schemas.lease_records import RateLimitRecord
from schemas.topology import LEASES
from services.bus.nats.nats_bus import NatsBus
from services.primitives.clock import SystemClock
from services.primitives.errors import NavarchError, Unavailable
from services.provisioner.provider_client import rate_limit
from services.provisioner.provider_client.provider import Environment
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.provider_client.rate_limit import LocalRateLimiter, SharedRateLimiter
from services.provisioner.providers.lambda_cloud import LambdaProvider
from tests.provisioner.lambda_server import KEY, serving
from tests.provisioner.provisioner_parts import FLEET, request
from tests.support.busyness import watched

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
        turn = rate_limit.slot_start(self.record, self.stored_at)
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

    def use(self, taker: Taker) -> None:
        """Use the turn, if it has begun and is not over."""
        if taker.sent is None or self.now < taker.known + timedelta(seconds=taker.wait):
            return
        since_sent = (self.now - taker.sent).total_seconds()
        if rate_limit.is_in_time(since_sent, taker.wait, self.pace.interval_seconds):
            self.uses.append((self.now, taker.kind))
        taker.sent = None


def pace(interval: float) -> rate_limit.RequestRate:
    """Launches are twelve times as seldom, as at Lambda."""
    return rate_limit.RequestRate(
        interval_seconds=interval, slower_seconds={"launch": 12 * interval}
    )


def closest(moments: list[datetime]) -> timedelta:
    """The shortest time between two."""
    return min((b - a for a, b in itertools.pairwise(moments)), default=timedelta.max)


passes = st.one_of(st.sampled_from([0.0, 0.0, 0.05, 1.0, 1.1, 12.0]), st.floats(0, 15))
whats = st.sampled_from(["read", "call", "launch", "use", "use", "a call", "a launch"])
acts = st.tuples(st.integers(0, REPLICAS - 1), whats, passes, st.floats(0, 0.2))


@given(interval=st.sampled_from([0.05, 1.0, 5.0]), history=st.lists(acts, max_size=100))
def test_whatever_the_interleaving_no_window_holds_more_than_the_rate(
    interval: float, history: list[tuple[int, str, float, float]]
) -> None:
    """Stale reads, slow answers, late wakings, deaths: all are apart, and launches further."""
    server = Server(pace(interval))
    for number, what, span, lag in history:
        server.now += timedelta(seconds=span * interval)
        taker = server.takers[number]
        if what == "read":
            server.read(taker)
        elif what == "use":
            server.use(taker)
        elif what.startswith("a "):
            server.whole(taker, "launch" if what == "a launch" else "", lag * interval)
        else:
            server.write(taker, "launch" if what == "launch" else "", lag * interval)
    apart = timedelta(seconds=interval) - ROUNDING
    assert closest([at for at, _ in server.uses]) >= apart
    assert closest([at for at, kind in server.uses if kind]) >= 12 * apart


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
    """However many die with a turn each, the next one comes right after theirs."""
    server = Server(pace(interval))
    for number in range(dead):
        server.read(server.takers[number % REPLICAS])
        server.write(server.takers[number % REPLICAS], "", 0.0)
    living = Taker()
    server.read(living)
    server.write(living, "", 0.0)
    each = interval + rate_limit.slack_seconds(interval)
    assert living.wait == pytest.approx(dead * each)


def test_one_who_uses_each_turn_at_once_has_nearly_the_whole_rate() -> None:
    """A tenth is given away, half a second at most: that is what being late may cost."""
    assert (0.1, 0.5) == (rate_limit.slack_seconds(1.0), rate_limit.slack_seconds(12.0))


# --- on the bus ----------------------------------------------------------------------------------


async def test_replicas_on_one_bus_share_the_rate(bus: NatsBus) -> None:
    """Four at once, each with several callers: one every interval, and all of them come."""
    interval, used = 0.05, []
    pacers = [
        SharedRateLimiter(
            bus, SystemClock(), "lab", rate_limit.RequestRate(interval_seconds=interval)
        )
        for _ in range(4)
    ]

    async def call(rate_limiter: SharedRateLimiter) -> None:
        await rate_limiter.wait_for_slot()
        used.append(asyncio.get_running_loop().time())

    async with asyncio.timeout(60):
        await asyncio.gather(*(call(each) for each in pacers for _ in range(4)))
    assert 16 == len(used)
    # From the return of a turn to the clock being read nothing is promised, but it is short.
    assert min(b - a for a, b in itertools.pairwise(sorted(used))) > interval * 0.9


async def test_a_caller_that_is_cancelled_costs_one_turn(bus: NatsBus) -> None:
    """Those who waited behind it in the same process had none taken for them."""
    rate_limiter = SharedRateLimiter(
        bus, SystemClock(), "lab", rate_limit.RequestRate(interval_seconds=20.0)
    )
    await rate_limiter.wait_for_slot()
    waiting = [asyncio.create_task(rate_limiter.wait_for_slot()) for _ in range(10)]
    async with asyncio.timeout(60):
        while (await bus.get(LEASES, "provisioner.pace-lab")).revision < 2:
            await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
    taken = await bus.get(LEASES, "provisioner.pace-lab")
    assert taken is not None
    assert 2 == taken.revision, "of ten that waited one had a turn taken for it"


class Late(SystemClock):
    """Wakes too late, for a number of times."""

    def __init__(self, times: int) -> None:
        self.times = times

    async def sleep(self, seconds: float) -> None:
        """Oversleep."""
        late = 0.1 if self.times > 0 else 0.0
        self.times -= 1
        await asyncio.sleep(seconds + late)


@pytest.mark.parametrize(("times", "fails"), [(2, False), (1_000, True)])
async def test_a_turn_that_was_slept_through_is_not_used(
    bus: NatsBus, times: int, fails: bool
) -> None:
    """Another is taken; a process that always is late says so, and is tried again later."""
    clock = Late(times)
    rate_limiter = SharedRateLimiter(
        bus, clock, "lab", rate_limit.RequestRate(interval_seconds=0.1)
    )
    said = ""
    try:
        await rate_limiter.wait_for_slot()
    except ProviderError as error:
        said = error.message
    assert fails == ("over before use" in said)


class Away:
    """A bus that is away."""

    async def get(self, *_: object) -> None:
        """No server answers."""
        raise Unavailable("no responders")


async def test_without_a_bus_no_call_goes_out() -> None:
    """It is a passing error, and never a call beyond the rate."""
    with pytest.raises(ProviderError, match="no request slot could be taken") as caught:
        await SharedRateLimiter(
            Away(), SystemClock(), "lab", rate_limit.RequestRate(interval_seconds=1.0)
        ).wait_for_slot()
    assert "TRANSIENT" == caught.value.kind
    await SharedRateLimiter(
        Away(), SystemClock(), "lab", rate_limit.RequestRate(interval_seconds=0.0)
    ).wait_for_slot()


@pytest.mark.parametrize(("name", "interval"), [("Lambda Key", 1.0), ("lab", 61.0)])
def test_what_cannot_be_paced_is_refused(name: str, interval: float) -> None:
    """A name that is no key, and a pace that would outlive its record."""
    with pytest.raises(NavarchError):
        SharedRateLimiter(
            Away(), SystemClock(), name, rate_limit.RequestRate(interval_seconds=interval)
        )


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "local"])
async def test_a_wait_for_a_launch_delays_no_other_request(bus: NatsBus, *, shared: bool) -> None:
    """Other calls go on at their own pace while launches wait for theirs."""
    plan = rate_limit.RequestRate(interval_seconds=0.05, slower_seconds={"launch": 0.5})
    rate_limiter = (
        SharedRateLimiter(bus, SystemClock(), "lab", plan) if shared else LocalRateLimiter(plan)
    )
    used: list[tuple[float, str]] = []

    async def call(kind: str) -> None:
        await rate_limiter.wait_for_slot(kind)
        used.append((asyncio.get_running_loop().time(), kind))

    async with watched() as still, asyncio.timeout(60):
        await asyncio.gather(*(call("launch") for _ in range(3)), *(call("") for _ in range(8)))
    launches = [at for at, kind in used if kind]
    # Between the return of a turn and its record the machine may be suspended.
    assert launches[-1] - launches[0] > 0.8
    # If the machine is suspended the next launch is due before they have gone.
    assert still() > 0.1 or ["", "", ""] == [kind for _, kind in sorted(used)[1:4]]


async def test_in_one_process_callers_go_in_order() -> None:
    """As they came, an interval apart."""
    rate_limiter, order = LocalRateLimiter(rate_limit.RequestRate(interval_seconds=0.01)), []

    async def call(number: int) -> None:
        await rate_limiter.wait_for_slot()
        order.append(number)

    await asyncio.gather(*(call(number) for number in range(5)))
    assert [0, 1, 2, 3, 4] == order


@pytest.fixture
async def replicas(bus: NatsBus, tmp_path: Path) -> AsyncIterator[tuple]:
    """Lambda's provider at two replicas with different names for one account."""
    (tmp_path / "key").write_text(KEY)

    def rate_limiter(name: str, pace: rate_limit.RequestRate) -> SharedRateLimiter:
        return SharedRateLimiter(bus, SystemClock(), name, pace)

    async with serving() as api:
        options = LambdaProvider.Options(
            api_key_file=str(tmp_path / "key"),
            base_url=api.url,
            ssh_key="laptop",
            request_interval=Duration(0.1),
            launch_interval=Duration(0.3),
        )
        made = [
            LambdaProvider(
                options=options,
                environment=Environment(
                    name=name,
                    fleet=FLEET,
                    nats_url="",
                    data_dir=tmp_path,
                    rate_limiter=rate_limiter,
                ),
            )
            for name in ("one", "two")
        ]
        yield api, made
        for each in made:
            await each.close()


async def test_lambdas_rate_is_the_accounts(replicas: tuple) -> None:
    """Launches of two replicas at once: the server sees no more requests than allowed."""
    api, providers = replicas
    wanted = {"region": "us-west-2", "instance_type": "gpu_1x_a10"}
    async with asyncio.timeout(60):
        await asyncio.gather(
            *(each.provision(request(f"web-{i}", **wanted)) for i, each in enumerate(providers * 2))
        )
    moments = sorted(moment for _, moment in api.calls)
    launches = sorted(moment for path, moment in api.calls if path.endswith("launch"))
    # A request may reach the server late, and the next one then seems early: their number counts.
    assert moments[-1] - moments[0] > (len(moments) - 1) * 0.1 - 0.3
    assert launches[-1] - launches[0] > (len(launches) - 1) * 0.3 - 0.3
