"""Decides which names are valid on the bus, and raises an error for others."""

import hashlib
import re
from typing import Final

POOL_NAME_CHARS_MAX: Final = 30
"""A pool's name prefixes its nodes' names, which must fit a DNS label."""

TOKEN: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")
"""One token of a subject: a DNS label, so that it can also name hosts and instances."""

NODE_CHARS_MAX: Final = 63

SAGA_TOKEN: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,95}\Z")
"""A saga's ID contains its kind and its node, so it may be longer than a token."""


class InvalidNameError(ValueError):
    """A name that is not valid in a subject; the message says which, why and what to do."""

    def __init__(self, what: str, value: str, chars_max: int) -> None:
        """Keep the kind of name and the value for callers that report them."""
        shown = value if len(value) <= 80 else value[:77] + "..."  # noqa: PLR2004
        super().__init__(
            f"{what} {shown!r} is not a valid name: use 1 to {chars_max} of a-z, 0-9 and '-', "
            "beginning with a letter or digit (a host name with dots: use its first label)"
        )
        self.what = what
        self.value = value


def token(value: str, what: str) -> str:
    """Return `value` if it can be one token of a subject, else raise InvalidNameError."""
    if not TOKEN.match(value):
        raise InvalidNameError(what, value, 63)
    return value


def node_token(host: str) -> str:
    """The name of the node on a host whose name may have dots or be too long; one per host."""
    lower = host.lower()
    plain = re.sub(r"[^a-z0-9-]", "-", lower)
    if TOKEN.match(plain):
        return plain
    digits = hashlib.sha256(lower.encode()).hexdigest()[:8]
    return f"n{plain[: NODE_CHARS_MAX - 10].lstrip('-')}-{digits}"


def pool_name(value: str) -> str:
    """Return `value` if it can name a pool, else raise InvalidNameError."""
    if not TOKEN.match(value) or len(value) > POOL_NAME_CHARS_MAX:
        raise InvalidNameError("pool", value, POOL_NAME_CHARS_MAX)
    return value


def saga_token(value: str) -> str:
    """Return `value` if it can be a saga's id, else raise InvalidNameError."""
    if not SAGA_TOKEN.match(value):
        raise InvalidNameError("saga", value, 96)
    return value


def saga_number(saga: str) -> int:
    """The number of a saga that acts on a node; of each node they count from 1."""
    number = saga.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def node_serial(pool: str, name: str) -> int:
    """Return the number in a node's name, in the order in which its pool named them; 0: none."""
    found = re.fullmatch(rf"{re.escape(pool)}-(\d{{1,15}})-[0-9a-f]{{4}}", name)
    return int(found[1]) if found is not None else 0
