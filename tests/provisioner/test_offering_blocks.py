"""Failures are remembered: each blocks an offering for a doubling wait, with one probe."""

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.enums import ProviderErrorKind
from schemas.launch_offers import Offering
from schemas.offering_records import BlockRecord
from services.provisioner.offerings import offering_blocks
from services.provisioner.offerings.offering_blocks import (
    Blocked,
    BlockTarget,
    Free,
    LaunchFailure,
    ProbeDue,
)
from services.provisioner.provider_client.provider_errors import RULES

NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)
KINDS = get_args(ProviderErrorKind)


def subject(**changes: Any) -> BlockTarget:
    """An offering of pool `web`, changed."""
    pool = changes.pop("pool", "web")
    configuration = changes.pop("configuration", "c1")
    model = changes.pop("model", "H100")
    plain = {"provider": "aws", "region": "r", "zone": "r-a", "instance_type": "p5.48xlarge"}
    return BlockTarget(
        offering=Offering(**(plain | changes)), model=model, pool=pool, configuration=configuration
    )


def failure(
    kind: Any = "CAPACITY", at: datetime = NOW, by: str = "web.1", **more: Any
) -> LaunchFailure:
    """A call that failed at once."""
    return LaunchFailure(kind=kind, reason="no", began=at, by=by, **more)


OTHER_MARKET = {"market": "spot"}
OTHER_TYPE = {"instance_type": "p5.4xlarge"}
OTHER_MODEL = {"instance_type": "g6.xlarge", "model": "L4"}
OTHER_ZONE = {"zone": "r-b"}
OTHER_POOL = {"pool": "job"}
CHANGED = {"configuration": "c2"}
OTHER_PROVIDER = {"provider": "gcp"}

BLOCKS: dict[str, tuple[list[dict[str, str]], list[dict[str, str]]]] = {
    "CAPACITY": ([{}, OTHER_POOL], [OTHER_MARKET, OTHER_TYPE, OTHER_ZONE, OTHER_PROVIDER]),
    "UNSUPPORTED": ([{}, OTHER_MARKET], [OTHER_TYPE, OTHER_ZONE]),
    "NETWORK": ([{}, OTHER_MARKET, OTHER_TYPE], [OTHER_ZONE]),
    "QUOTA": ([{}, OTHER_TYPE, OTHER_ZONE], [OTHER_MODEL, OTHER_MARKET, OTHER_PROVIDER]),
    "AUTH": ([{}, OTHER_MODEL, OTHER_MARKET, OTHER_ZONE, OTHER_POOL], [OTHER_PROVIDER]),
    "THROTTLE": ([{}, OTHER_MODEL, OTHER_POOL], [OTHER_PROVIDER]),
    "TRANSIENT": ([{}, OTHER_MODEL, OTHER_POOL], [OTHER_PROVIDER]),
    "INVALID": ([{}, OTHER_MARKET, OTHER_ZONE], [OTHER_POOL, CHANGED, OTHER_TYPE]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_blocks_as_much_as_its_kind_says(kind: Any) -> None:
    """Row by row of the taxonomy: what is blocked with it, and what is not."""
    about = subject()
    key = offering_blocks.block_key(offering_blocks.block_scope(kind), about)
    known = {key: offering_blocks.record_failure(None, about, failure(kind), NOW)}
    too, not_too = BLOCKS[kind]
    assert [bool(offering_blocks.find_blocks(subject(**each), known)) for each in too] == [
        True
    ] * len(too)
    assert [bool(offering_blocks.find_blocks(subject(**each), known)) for each in not_too] == [
        False
    ] * len(not_too)
    assert RULES[kind].block_seconds <= RULES[kind].block_max_seconds


def test_the_wait_doubles_up_to_its_bound_and_starts_again_for_another_kind() -> None:
    """A probe is never further away than the bound, and never closer than the first wait."""
    record, at, waits = None, NOW, []
    for _ in range(6):
        record = offering_blocks.record_failure(record, subject(), failure(at=at), at)
        waits.append((record.probe_at - at).total_seconds())
        at = record.probe_at
    assert (waits, record.since if record else None) == ([5, 10, 20, 40, 45, 45], NOW)
    again = offering_blocks.record_failure(record, subject(), failure("AUTH", at=at), at)
    assert (again.failures, again.since) == (1, at)


def test_calls_under_way_together_count_once() -> None:
    """Fifty launches that find the same thing out at once are one failure."""
    first = offering_blocks.record_failure(
        None, subject(), failure(by="web.1"), NOW + timedelta(seconds=1)
    )
    same = offering_blocks.record_failure(
        first, subject(), failure(by="web.2"), NOW + timedelta(seconds=2)
    )
    assert same is first


def test_the_provider_s_own_wait_counts_where_it_is_longer() -> None:
    """The provider's own wait counts where it is longer, as it knows best."""
    record = offering_blocks.record_failure(
        None, subject(), failure("THROTTLE", retry_after=90.0), NOW
    )
    assert record.probe_at == NOW + timedelta(seconds=90)


def test_of_two_blocks_the_longer_counts_and_both_are_tried() -> None:
    """One launch claims both, and finds out about both."""
    about = subject()
    known = {
        offering_blocks.block_key(
            offering_blocks.block_scope(kind), about
        ): offering_blocks.record_failure(None, about, failure(kind), NOW)
        for kind in ("CAPACITY", "AUTH")
    }
    found = offering_blocks.find_blocks(about, known)
    at = NOW + timedelta(seconds=30)
    state = offering_blocks.block_state(found, "web.1", at)
    assert isinstance(state, Blocked)
    assert (state.record.kind, state.until) == ("AUTH", NOW + timedelta(seconds=60))
    assert offering_blocks.block_state(found, "web.1", state.until) == ProbeDue(tuple(known))
    assert offering_blocks.block_state((), "web.1", NOW) == Free()


def test_keys_are_keys_whatever_a_provider_calls_things() -> None:
    """Dots separate tokens of a key and may not be adjacent."""
    odd = subject(region="", zone="zone 1/a*", instance_type="..x>")
    for scope in offering_blocks.SCOPES:
        key = offering_blocks.block_key(scope, odd)
        assert all(part and not set(part) & set(" *>/") for part in key.split("."))


class Ledger:
    """One block and the launches that meet it, in a time of their own."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.now = NOW
        self.record: BlockRecord | None = None
        self.probes: list[datetime] = []
        self.trying: dict[str, datetime] = {}

    def look(self, by: str) -> bool:
        """A launch would like to call; whether it may."""
        if self.record is None:
            return True
        if not isinstance(
            offering_blocks.block_state([("k", self.record)], by, self.now), ProbeDue
        ):
            return False
        claimed = offering_blocks.claim_probe(self.record, by, self.now)
        assert claimed is not None
        self.record = claimed
        if by not in self.trying:  # else its process died, and repeats the call of its own token
            self.probes.append(self.now)
        self.trying[by] = self.now
        return True

    def fail(self, by: str) -> None:
        """Record that a launch's call found nothing."""
        began = self.trying.pop(by, self.now)
        self.record = offering_blocks.record_failure(
            self.record, subject(), failure(at=began, by=by), self.now
        )


@example(moves=[(0, 1.0, False), (0, 4.0, True), (0, 1.0, True), (0, 1.0, False)])
@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0.1, 20.0), st.booleans()), max_size=300))
def test_an_exhausted_offering_is_tried_by_one_and_within_the_budget(
    moves: list[tuple[int, float, bool]],
) -> None:
    """Only one launch probes at a time, and no more often than the waits allow.

    A move: which launch looks, how long after the last one, and whether its process dies in its
    call, so that it never says what came of it.
    """
    ledger = Ledger()
    ledger.fail("web.0")
    for launch, seconds, dies in moves:
        ledger.now += timedelta(seconds=seconds)
        by = f"web.{launch}"
        if ledger.look(by):
            assert list(ledger.trying) == [by] or ledger.now - min(
                ledger.trying.values()
            ) >= timedelta(seconds=offering_blocks.PROBE_SECONDS)
            if dies:
                # No other launch may probe before its time is over.
                assert not ledger.look("web.other")
            else:
                ledger.fail(by)
    elapsed = (ledger.now - NOW).total_seconds()
    assert len(ledger.probes) <= probe_budget(elapsed)


def probe_budget(seconds: float) -> int:
    """Return how many calls an offering without capacity may have: the waits, added up."""
    rule, waited, calls = RULES["CAPACITY"], 0.0, 0
    while waited <= seconds:
        waited += min(rule.block_seconds * 2.0**calls, rule.block_max_seconds)
        calls += 1
    return calls
