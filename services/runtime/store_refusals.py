"""The words of nats-server show why it refuses to store, and name the remedy. Pure."""

from collections.abc import Mapping
from typing import Final

from schemas.fleet_events import StoreCause

WORDS: Final[tuple[tuple[StoreCause, tuple[str, ...]], ...]] = (
    ("rate", ("maximum messages per subject", "too many requests")),
    ("files", ("too many open files", "file descriptors")),
    (
        "space",
        (
            *("no space left", "insufficient storage", "insufficient resources"),
            *("resource limits exceeded", "maximum bytes exceeded", "maximum messages exceeded"),
        ),
    ),
    (
        "quorum",
        (
            *("no suitable peers", "peer offline", "temporarily unavailable"),
            *("no leader", "no responders", "no quorum"),
        ),
    ),
)
"""Cause -> words of the server's answers that name it; its codes have several meanings each."""
REMEDIES: Final[Mapping[StoreCause, str]] = {
    "rate": (
        "more is sent than the server stores: `nats stream report` shows to which stream, and "
        "`navarch status` names nodes that flood; what waits is stored afterwards"
    ),
    "files": (
        "raise the limit of open files of nats-server (`LimitNOFILE=` of its unit), then restart "
        "it; what waits is stored afterwards"
    ),
    "space": (
        "free space on the disk of nats-server's store_dir (`df -h`), then restart nats-server: "
        "once its disk was full it stores nothing until it is restarted. Where the disk has room "
        "it had no open files left: raise their limit (`LimitNOFILE=` of its unit) before the "
        "restart. Nothing that is stored is lost, and what waits is done afterwards"
    ),
    "quorum": (
        "start the servers of the cluster that are away (`nats server report jetstream`): more "
        "than half of them must run. What waits is done afterwards"
    ),
    "unknown": (
        "read the log of nats-server, and look at its disk (`df -h`) and its processor time. If "
        "the disk was full, free space, if it had no open files left, raise `LimitNOFILE=` of its "
        "unit; then restart nats-server. What waits is done afterwards"
    ),
}


def refusal_cause(reason: str, *, stores_others: bool = False) -> StoreCause:
    """Return the cause that a refusal names.

    `stores_others`: whether the stream has taken other messages meanwhile. One that does and
    leaves a message without an answer has too many to store.
    """
    text = reason.lower()
    for cause, words in WORDS:
        if any(each in text for each in words):
            return cause
    return "rate" if stores_others else "unknown"
