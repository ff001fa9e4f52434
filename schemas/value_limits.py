"""Limits every value in a message or a record.

Numbers and lengths are bounded by their types, at no cost; date-times when they are decoded, since
msgspec has no bounds for them. Inside these bounds no arithmetic overflows and no header breaks.
"""

import re
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import inspect

from schemas.duration import SECONDS_MAX
from schemas.names import SAGA_TOKEN, TOKEN

TIME_MIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""A host without a clock battery starts here, and its faults count."""
TIME_MAX: Final = datetime(2101, 1, 1, tzinfo=UTC)
NUMBER_MAX: Final = 1e15
NAME_CHARS_MAX: Final = 512

T = TypeVar("T")
Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Float = Annotated[float, msgspec.Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
Seconds = Annotated[float, msgspec.Meta(ge=-SECONDS_MAX, le=SECONDS_MAX)]
"""A time span that can be added to any time."""
Name = Annotated[str, msgspec.Meta(max_length=NAME_CHARS_MAX)]
"""A name or an ID that is not a subject's token."""
Token = Annotated[str, msgspec.Meta(pattern=f"^{TOKEN.pattern}")]
"""The name of a pool or a node: also a file's name, a key, a label of a metric."""
OptionalToken = Annotated[str, msgspec.Meta(pattern=f"^({TOKEN.pattern})?\\Z")]
SagaToken = Annotated[str, msgspec.Meta(pattern=f"^{SAGA_TOKEN.pattern}")]
OptionalSagaToken = Annotated[str, msgspec.Meta(pattern=f"^({SAGA_TOKEN.pattern})?\\Z")]
Identifier = Annotated[str, msgspec.Meta(pattern=rf"^[!-~]{{0,{NAME_CHARS_MAX}}}\Z")]
"""What a provider, a kernel or NVML names a machine, a zone, a GPU: visible ASCII, no blanks."""
PLAIN: Final = re.compile(rf"([A-Za-z0-9/._][A-Za-z0-9/._:@+=,\[\]~#%-]{{0,{NAME_CHARS_MAX}}})?\Z")
"""A value that may be put into a shell's command or into YAML: a region, an address, a package."""
Plain = Annotated[str, msgspec.Meta(pattern=f"^{PLAIN.pattern}")]
Address = Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9:_\[][A-Za-z0-9:_.%\[\]-]{0,254})?\Z")]
"""`host`, `host:port`, `[v6]:port` or an IPv6 address; never an option of a command."""
UserName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z")]
"""A login name; never an option of a command."""
HostKey = Annotated[
    str, msgspec.Meta(pattern=r"^([a-z][a-z0-9@.-]{1,63} [A-Za-z0-9+/]{4,16384}={0,2})?\Z")
]
"""An SSH host key: its type and its data, one line."""
AgentKey = Annotated[str, msgspec.Meta(pattern=r"^(U[A-Z2-7]{55})?\Z")]
"""The public key of a node's credentials."""
Slot = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,10}\Z")]
"""The beginning of a slot of a budget's window: seconds since 1970, below the year 2287."""
UtcTime = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time, written as RFC 3339 with a zone; Navarch writes UTC."""


def limited(value: T) -> T:
    """Return a decoded struct; raise msgspec.ValidationError if a time in it is out of range."""
    if path := time_outside(value):
        years = f"{TIME_MIN.year} to {TIME_MAX.year - 1}"
        raise msgspec.ValidationError(f"Expected a time in the years {years} - at `{path}`")
    return value


def time_outside(value: Any) -> str:
    """Path of the first date-time outside the limits in a decoded struct; empty: none is."""
    if isinstance(value, datetime):
        return "" if TIME_MIN <= value < TIME_MAX else "$"
    if isinstance(value, msgspec.Struct):
        for name in _timed_fields(type(value)):
            field = getattr(value, name)
            # Most are absent or plain times: no call for those.
            if field is None or (type(field) is datetime and TIME_MIN <= field < TIME_MAX):
                continue
            if found := time_outside(field):
                return f"$.{name}{found[1:]}"
    elif isinstance(value, dict):
        return next(filter(None, map(time_outside, value.values())), "")
    elif isinstance(value, tuple | list):
        return next(filter(None, map(time_outside, value)), "")
    return ""


@cache
def _timed_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields of a struct that may contain date-times."""
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return tuple(each.name for each in found.fields if _may_hold_time(each.type))


def _may_hold_time(kind: inspect.Type) -> bool:
    match kind:
        case inspect.DateTimeType():
            return True
        case inspect.StructType():
            return any(_may_hold_time(each.type) for each in kind.fields)
        case inspect.UnionType():
            return any(map(_may_hold_time, kind.types))
        case inspect.DictType():
            return _may_hold_time(kind.value_type)
        case inspect.TupleType():
            return any(map(_may_hold_time, kind.item_types))
        case inspect.VarTupleType() | inspect.ListType():
            return _may_hold_time(kind.item_type)
        case _:
            return False
