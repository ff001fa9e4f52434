"""An alert about a server that refuses to store names the cause, and space only where it is."""

import pytest

from services.runtime.failure_register import unwritable
from services.runtime.store_refusals import REMEDIES, refusal_cause


@pytest.mark.parametrize(
    ("reason", "stores_others", "expected"),
    [
        ("x: maximum messages per subject exceeded (10077)", False, "rate"),
        ("x: too many requests (10167)", False, "rate"),
        ("x: no answer in 5 s", True, "rate"),
        ("x: no answer in 5 s", False, "unknown"),
        (
            "x: error opening msg block file [a]: open a: too many open files (10077)",
            False,
            "files",
        ),
        ("x: write 1.blk: no space left on device (10077)", True, "space"),
        ("x: insufficient storage resources available (10047)", False, "space"),
        ("x: maximum bytes exceeded (10077)", False, "space"),
        ("x: no suitable peers for placement, peer offline (10005)", False, "quorum"),
        ("x: JetStream system temporarily unavailable (10008)", False, "quorum"),
        ("x: no responders", False, "quorum"),
        ("", False, "unknown"),
    ],
)
def test_the_servers_words_name_the_cause(
    reason: str,
    stores_others: bool,
    expected: str,
) -> None:
    """A server that stores what others send and leaves one call unanswered has too many."""
    assert refusal_cause(reason, stores_others=stores_others) == expected


def test_only_a_lack_of_space_is_blamed_on_space() -> None:
    """An operator who frees space during a flood loses time."""
    blaming = [cause for cause, text in REMEDIES.items() if text.startswith("free space")]
    found = unwritable(("EVENTS", "too many requests (10167)"))
    assert blaming == ["space"]
    assert (found.store_cause, found.remedy) == ("rate", REMEDIES["rate"])
