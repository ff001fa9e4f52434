"""The number of messages of one sender that pass is bounded, whatever is sent."""

from hypothesis import given
from hypothesis import strategies as st

from services.runtime.sender_quota import (
    EQUAL_MAX,
    SENDER_MAX,
    WINDOW_SECONDS,
    SenderLimit,
    SenderQuota,
)

Sent = tuple[int, int]
"""Signature and rank of a message."""
LIMIT = SenderLimit(signature=lambda sent: sent[0], rank=lambda sent: sent[1])
RANK_MAX = 5


def passed(quota: SenderQuota, sent: list[Sent], sender: str = "n") -> list[Sent]:
    """The messages that pass, in order."""
    return [each for each in sent if quota.admit(sender, each)]


def test_of_equal_messages_some_pass_and_the_rest_is_counted() -> None:
    """Another sender is not affected, and the next window begins again."""
    quota = SenderQuota(LIMIT, 0.0)
    assert len(passed(quota, [(1, 0)] * 1_000)) == EQUAL_MAX
    assert len(passed(quota, [(1, 0)] * EQUAL_MAX, "other")) == EQUAL_MAX
    assert quota.flooders(0.0) == {"n": 1_000 - EQUAL_MAX}
    assert quota.flooders(WINDOW_SECONDS) == {"n": 1_000 - EQUAL_MAX}
    assert passed(quota, [(1, 0)]) == [(1, 0)]
    assert quota.flooders(2 * WINDOW_SECONDS) == {}


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, RANK_MAX)), max_size=300))
def test_the_most_serious_message_always_passes(sent: list[Sent]) -> None:
    """The most serious one passes after any number of different ones, and few pass in all."""
    quota = SenderQuota(LIMIT, 0.0)
    flood = [(1_000 + number, 0) for number in range(SENDER_MAX)]
    found = passed(quota, [*flood, *sent])[len(flood) :]
    assert max((rank for _, rank in found), default=0) == max((rank for _, rank in sent), default=0)
    assert len(found) <= RANK_MAX


def test_what_is_not_the_senders_own_passes_and_begins_its_quota_again() -> None:
    """An uncordoned node's next serious fault counts, though a worse one passed before."""
    quota = SenderQuota(
        SenderLimit(signature=lambda sent: sent[0] or None, rank=lambda sent: sent[1]), 0.0
    )
    passed(quota, [(1, 0)] * 100)
    assert passed(quota, [(1, 3), (1, 3)]) == [(1, 3)]
    assert passed(quota, [(0, 0), (1, 3)]) == [(0, 0), (1, 3)]
