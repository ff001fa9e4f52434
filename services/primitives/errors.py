"""Declares the errors of the shell.

NavarchError
├── BusError                    the bus did not do it
│   ├── Unavailable             not now: no connection, no leader, no answer in time; try again
│   ├── Conflict                another writer was faster; read again and decide again
│   └── Refused                 never: the server says the request itself is wrong
│       └── TooLarge            the message is larger than the server takes
├── Retry                       a handler asks for its message again, after a while
│   └── UnreadableRecord        its record cannot be read until an operator repairs it
├── Reject                      a handler cannot use its message; it is dead-lettered
├── AnswerError                 an endpoint refuses a query, or a request is refused
├── ConfigurationError          names file, line, key and the remedy
│   └── ConfigurationErrors     all that is wrong with a configuration
└── SetupError                  the server is not what Navarch needs
"""

from collections.abc import Sequence
from typing import Final

UNREADABLE_SECONDS: Final = 10.0
"""Before a record that cannot be read is read again."""


class NavarchError(Exception):
    """Root of every error that Navarch raises on purpose."""


class BusError(NavarchError):
    """The bus did not do what was asked."""


class Unavailable(BusError):  # noqa: N818 - reads as the state it names
    """Not now; the same call may succeed later."""


class LoginRefused(Unavailable):
    """The server refuses the credentials."""


class NotPermitted(Unavailable):
    """The server does not let this user publish there."""


class StoreFull(Unavailable):
    """The server's limits of memory or disk do not allow it."""


class TooMany(Unavailable):
    """The server refuses more messages of this subject for the moment, because so many wait."""


class NoResponders(Unavailable):
    """No connection serves the subject now."""


class Conflict(BusError):  # noqa: N818
    """The guard did not hold: another writer was faster."""


class Refused(BusError):  # noqa: N818
    """The server refuses the request itself."""

    def __init__(self, text: str, code: int = 0) -> None:
        """Keep the server's error code (`err_code`), 0 where it gave none."""
        super().__init__(text)
        self.code = code


class TooLarge(Refused):
    """The message or its subject is not one that the server takes, however often it is tried."""


class Retry(NavarchError):  # noqa: N818
    """Deliver this message again after `after_seconds` (None: the loop's back-off)."""

    def __init__(self, reason: str, after_seconds: float | None = None) -> None:
        """Say why; the reason goes to the log, and to the dead letter if there is one."""
        super().__init__(reason)
        self.after_seconds = after_seconds


class UnreadableRecord(Retry):
    """A stored record cannot be read; what needs it waits until it is repaired or removed."""

    def __init__(self, bucket: str, key: str, reason: str) -> None:
        super().__init__(
            f"the record {key} in {bucket} cannot be read: {reason}", UNREADABLE_SECONDS
        )
        self.bucket = bucket
        self.key = key
        self.reason = reason


class Reject(NavarchError):  # noqa: N818
    """A message can never be used; dead-letter it with the reason."""


class AnswerError(NavarchError):
    """A query or a request was refused."""

    def __init__(self, text: str, code: str = "refused") -> None:
        """Keep the code of `schemas.refusal_catalogue`."""
        super().__init__(text)
        self.code = code


class ConfigurationError(NavarchError):
    """A setting is wrong: what, where, and what to write instead."""

    def __init__(self, problem: str, *, file: str = "", line: int = 0, key: str = "") -> None:
        """Compose `file:line: key: problem` of what is known."""
        place = f"{file}:{line}" if line else file
        super().__init__(": ".join(part for part in (place, key, problem) if part))
        self.problem = problem
        self.file = file
        self.line = line
        self.key = key

    @property
    def errors(self) -> tuple["ConfigurationError", ...]:
        """Each error: this one, or those that it lists."""
        return (self,)


class ConfigurationErrors(ConfigurationError):  # noqa: N818 - several of them
    """Several settings are wrong: one line for each."""

    def __init__(self, errors: Sequence[ConfigurationError]) -> None:
        """List them; `problem`, `file`, `line` and `key` are those of the first."""
        first = errors[0]
        super().__init__(first.problem, file=first.file, line=first.line, key=first.key)
        self.args = ("\n".join(map(str, errors)),)
        self._errors = tuple(errors)

    @property
    def errors(self) -> tuple[ConfigurationError, ...]:
        """Return all errors of the configuration."""
        return self._errors


class SetupError(NavarchError):
    """The server lacks a feature, or its configuration differs from the topology."""
