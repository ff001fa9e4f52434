"""What msgspec says of a value that does not fit, in words for the author of the YAML. Pure."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

WANTED: Final = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "a mapping (`key: value`)",
    "array": "a list",
}
GIVEN: Final = {
    "str": "a text",
    "int": "a number",
    "float": "a number with a fraction",
    "bool": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "empty",
    "date": "a date",
    "datetime": "a date",
    "bytes": "binary",
}
QUOTABLE: Final = frozenset({"int", "float", "bool", "date", "datetime"})
"""What YAML makes of words that may have been meant as text."""
_TYPE = re.compile(r"Expected `([a-z |]+)`, got `([a-z]+)`\Z")
_BOUND = re.compile(r"Expected `(?:int|float)(?: \| null)?` (<=|>=|<|>) (-?[0-9.]+)\Z")
_LENGTH = re.compile(r"Expected `(str|array|object)(?: \| null)?` of length (<=|>=) ([0-9]+)\Z")
_SIDE: Final = {"<=": "{} or less", ">=": "{} or more", "<": "less than {}", ">": "more than {}"}
_UNITS: Final = {"str": "characters", "array": "items", "object": "keys"}


def unknown_key(key: str, known: Sequence[str]) -> str:
    """That a key is unknown, and which may be meant."""
    near = get_close_matches(key, known, 1)
    if near:
        return f"unknown key; did you mean `{near[0]}`?"
    return f"unknown key; known here: {', '.join(known) or 'nothing'}"


def in_words(text: str) -> str:
    """Say it; what is of another form stays as it is."""
    if found := _TYPE.fullmatch(text):
        return _type(found[1].split(" | "), found[2]) or text
    if found := _BOUND.fullmatch(text):
        return f"must be {_SIDE[found[1]].format(f'{float(found[2]):.12g}')}"
    if found := _LENGTH.fullmatch(text):
        return f"must have {_SIDE[found[2]].format(found[3])} {_UNITS[found[1]]}"
    return text


def _type(wanted: list[str], given: str) -> str:
    named = [WANTED[each] for each in wanted if each in WANTED]
    if given not in GIVEN or len(named) < len([each for each in wanted if each != "null"]):
        return ""
    remedy = ""
    if "str" in wanted and given in QUOTABLE:
        remedy = "; put it in quotes"
    elif given == "null":
        remedy = "; write one, or take the key out"
    return f"must be {' or '.join(named)}, not {GIVEN[given]}{remedy}"
