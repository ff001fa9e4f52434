"""Changes good inputs into bad ones, drawn from a seed. Pure."""

import json
import re
from collections.abc import Sequence
from random import Random
from typing import Any, Final

BYTES_MAX: Final = 65_536
NESTING: Final = 20_000
REPEATS_MAX: Final = 2_000
TOKENS: Final = (
    *(b"", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\x1b[2J", b"\r\n", b"\t", b"'", b'"', b"\\"),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b": ",
        b"- ",
        b"&a ",
        b"*a",
        b"<<: *a",
        b"!!python/name:x",
    ),
    *(b"null", b"true", b"-1", b"0", b"1e999", b"NaN", b"9" * 400, b"0x7f", b"1_000", b"0o17"),
    *(b"0001-01-01T00:00:00Z", b"9999-12-31T23:59:59-14:00", b"1h", b"-5s", b"1e400d", b"..", b">"),
    *(
        b"${HOME}",
        b"${A:-${B}}",
        b"{{.Name}}",
        b"%s",
        b"../../x",
        b"*.>",
        b"x" * 5_000,
        "𝕏ß\u202e".encode(),
    ),
    *(
        b"size(",
        b"has(",
        b".map(x, x)",
        b".all(x, x.all(y, y))",
        b" && ",
        b" ? ",
        b"'a'.matches('(a+)+$')",
    ),
    *(b"NVRM: Xid (PCI:0000:01:00): 79, ", b"SXid", b"(0x00000082 0x00000040", b"<6>", b"6,1,2,-;"),
    *(b"[" * NESTING, b'{"a":' * NESTING, b"- " * NESTING, b"(" * NESTING),
)
NUMBERS: Final = re.compile(rb"-?\d+(\.\d+)?")
EXTREMES: Final = (
    b"0",
    b"-1",
    b"2147483648",
    b"9223372036854775808",
    b"1e308",
    b"-0.0",
    b"00",
    b"1e-9",
)
VALUES: Final[tuple[Any, ...]] = (
    *(
        None,
        True,
        -1,
        0,
        2**63 - 1,
        2**64,
        10**400,
        1e308,
        "",
        "x" * 20_000,
        "\x00",
        "\u202e\x1b[31m",
    ),
    *(
        "0001-01-01T00:00:00Z",
        "2100-12-31T23:59:59Z",
        "9999-12-31T23:59:59-14:00",
        [],
        {},
        [[]] * 500,
    ),
    *({"": {}}, {"x" * 600: 1}, "*.>", "..", "a b"),
)


def mutate(chance: Random, corpus: Sequence[bytes]) -> bytes:
    """Return one bad input, from the good ones."""
    data = chance.choice(corpus)
    head, newline, body = data.partition(b"\n")
    if chance.random() < 1 / 3 and (changed := _with_other_value(chance, body)) is not None:
        return head + newline + changed
    if chance.random() < 1 / 3 and (changed := _with_other_value(chance, data)) is not None:
        return changed
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        data = chance.choice(_CHANGES)(chance, data, corpus)[:BYTES_MAX]
    return data


def _with_other_value(chance: Random, data: bytes) -> bytes | None:
    """The same JSON with one value replaced; None: it is no JSON."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    places = list(_places(value))
    if not places:
        return None
    holder, key = chance.choice(places)
    holder[key] = chance.choice(VALUES)
    return json.dumps(value).encode()


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in list(items):
        yield value, key
        if isinstance(each, dict | list):
            yield from _places(each)


def _span(chance: Random, data: bytes) -> tuple[int, int]:
    start = chance.randint(0, len(data))
    return start, min(start + chance.choice((1, 4, 16, 64, 400)), len(data))


def _flip(chance: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    if not data:
        return data
    place = chance.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]


def _insert(chance: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    place = chance.randint(0, len(data))
    return data[:place] + chance.choice(TOKENS) + data[place:]


def _replace(chance: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(chance, data)
    return data[:start] + chance.choice(TOKENS) + data[end:]


def _delete(chance: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(chance, data)
    return data[:start] + data[end:]


def _repeat(chance: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(chance, data)
    return data[:start] + data[start:end] * chance.choice((2, 10, REPEATS_MAX)) + data[end:]


def _splice(chance: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    other = chance.choice(corpus)
    return data[: _span(chance, data)[0]] + other[_span(chance, other)[0] :]


def _number(chance: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    found = list(NUMBERS.finditer(data))
    if not found:
        return data
    each = chance.choice(found)
    return data[: each.start()] + chance.choice(EXTREMES) + data[each.end() :]


_CHANGES: Final = (_flip, _insert, _replace, _delete, _repeat, _splice, _number)
