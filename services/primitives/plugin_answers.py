"""Checks what a plugin returns against the type that its contract declares. Pure."""

from functools import cache
from typing import Any, get_type_hints

import msgspec

SHOWN_CHARS_MAX = 120


class WrongAnswerError(Exception):
    """A plugin returned something that its contract does not allow."""


def declared_type(contract: type[Any], method: str) -> Any:
    """Return the type that a method of a contract is declared to return; None: nothing is read."""
    function = getattr(contract, method)
    return _hints(function).get("return", Any)


@cache
def _hints(function: Any) -> dict[str, Any]:
    return get_type_hints(function)


def checked(answer: Any, declared: Any, method: str) -> Any:
    """Return the answer as the declared type; raise WrongAnswerError where it is none.

    A mapping with the fields of a declared struct counts as that struct.
    """
    if declared in (Any, None, type(None)):
        return answer
    try:
        return msgspec.convert(msgspec.to_builtins(answer), declared)
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError, RecursionError) as error:
        name = getattr(declared, "__name__", None) if isinstance(declared, type) else None
        shown = "None" if answer is None else f"{type(answer).__name__} {answer!r}"
        raise WrongAnswerError(
            f"{method} returned {shown[:SHOWN_CHARS_MAX]}, and not "
            f"{name or str(declared).replace('typing.', '')}: {error}"
        ) from error
