"""YAML files in which every key has its line, and their values checked against structs.

YAML nodes keep their places, msgspec checks the values, and its path (`$.pools.training.min_nodes`)
is looked up among the places: an error names file, line, key and the remedy.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec
import yaml

from schemas.duration import decode_hook
from services.primitives.errors import ConfigurationError
from services.settings.problem_list import PROBLEMS_MAX, ProblemList

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
DEPTH_MAX: Final = 64
"""Of mappings within lists within mappings: an alias of itself has no end, and the parser recurses
without a limit of its own."""
VALUES_MAX: Final = 200_000
"""Keys and values of a file, some 400 bytes each."""
NUMBER_CHARS_MAX: Final = 64
NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
SEVERAL_DOCUMENTS: Final = (
    "a second YAML document begins here; write one, with the sections `providers:` and `pools:`"
)
ALIASED_MAX: Final = 10_000
"""Values that aliases repeat."""
MERGE: Final = "tag:yaml.org,2002:merge"
_AT = re.compile(r" - at `(?:key in )?\$(.*)`\Z", re.DOTALL)
_UNKNOWN = re.compile(r"unknown field `([^`]+)`")
_MISSING = re.compile(r"missing required field `([^`]+)`")

Path_ = tuple[str | int, ...]


def _bare(kind: Any) -> Any:
    """A type without its bounds, and without `| None`."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if isinstance(kind, UnionType):
        others = [each for each in get_args(kind) if each is not NoneType]
        return _bare(others[0]) if len(others) == 1 else kind
    return kind


def kind_at(kind: Any, path: Iterable[str | int]) -> Any:
    """The type at a path in a struct; None where the struct does not say."""
    for part in path:
        kind = _bare(kind)
        if isinstance(part, int):
            kind = next(iter(get_args(kind)), None)
            continue
        hints = getattr(kind, "__annotations__", {})
        for base in getattr(kind, "__mro__", ()):
            hints = getattr(base, "__annotations__", {}) | hints
        kind = hints.get(part, None)
    return _bare(kind)


def words_of(kind: Any) -> list[str]:
    """The words that a Literal allows, or a union with one."""
    if isinstance(kind, str):
        return [kind] if kind else []
    return [word for part in get_args(kind) for word in words_of(part)]


def unknown_key(key: str, known: Sequence[str]) -> str:
    """Return that a key is unknown, and which may be meant."""
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


@dataclass(slots=True)
class Document:
    """Holds a YAML file's value, and the line of every key in it."""

    file: str
    value: Any
    lines: dict[Path_, int] = field(default_factory=dict)
    moved: dict[Path_, Path_] = field(default_factory=dict)
    """Where a translated value was written, if elsewhere."""
    composed: set[int] = field(default_factory=set)
    """The nodes that have been turned into values; one that comes again is an alias."""
    aliased: int = 0

    def error(self, path: Path_, problem: str) -> ConfigurationError:
        """Say what is wrong where; the nearest known line counts."""
        key = ".".join(str(part) for part in path) or "(the whole file)"
        return ConfigurationError(problem, file=self.file, line=self.line(path), key=key)

    def line(self, path: Path_) -> int:
        """Return the line of a value, or of the nearest place above it."""
        path = self.written(path)
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def written(self, path: Path_) -> Path_:
        """Where a value was written, before it was translated."""
        for end in range(len(path), 0, -1):
            if (before := self.moved.get(path[:end])) is not None:
                return self.written((*before, *path[end:]))
        return path


def path_of(key: str) -> Path_:
    """Return the path of a key such as `pools.training.windows.0`."""
    return tuple(int(part) if part.isdecimal() else part for part in key.split(".") if part)


def read_document(file: str, text: str) -> Document:
    """Parse YAML, keeping lines; duplicate keys and bad syntax are errors."""
    document = Document(file, None)
    loader = yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader
    try:
        _check_size(document, yaml.parse(text, Loader=loader))
        root = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = f"not valid YAML: {error.problem}"
        if error.problem == "but found another document":
            problem = SEVERAL_DOCUMENTS
        raise ConfigurationError(problem, file=file, line=line) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, max(text.find(chr(int(error.character))), 0)) + 1
        character = f"the character #x{int(error.character):04x}"
        problem = f"not valid YAML: {character} is not allowed; remove it"
        raise ConfigurationError(problem, file=file, line=line) from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"not valid YAML: {error}", file=file, line=1) from error
    document.value = {} if root is None else _plain(document, root, ())
    return document


def _check_size(document: Document, events: Iterable[yaml.Event]) -> None:
    """Refuse a file that would take too much memory, before anything is made of it."""
    depth = values = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        values += isinstance(event, yaml.NodeEvent)
        if depth > DEPTH_MAX or values > VALUES_MAX:
            document.lines[()] = event.start_mark.line + 1 if event.start_mark else 1
            problem = f"is more than {DEPTH_MAX} deep; make it flatter"
            if values > VALUES_MAX:
                problem = f"has more than {VALUES_MAX:,} values; make it smaller"
            raise document.error((), problem)


def _plain(document: Document, node: yaml.Node, path: Path_) -> Any:
    if len(path) > DEPTH_MAX:
        raise document.error(path[:3], f"is more than {DEPTH_MAX} deep; make it flatter")
    document.aliased += id(node) in document.composed
    document.composed.add(id(node))
    if document.aliased > ALIASED_MAX:
        raise document.error(
            path[:3], f"aliases repeat more than {ALIASED_MAX:,} values; use fewer aliases"
        )
    document.lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        merged, result = _merged(document, node, path), dict[str, Any]()
        for key_node, value_node in node.value:
            if key_node.tag == MERGE:
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                document.lines[path] = key_node.start_mark.line + 1
                raise document.error(path, "a key must be a text; put it in quotes")
            key = str(key_node.value)
            here = (*path, key)
            if key in result:
                first = document.lines[here]
                document.lines[here] = key_node.start_mark.line + 1
                raise document.error(here, f"is there twice (first on line {first}); remove one")
            document.lines[here] = key_node.start_mark.line + 1
            result[key] = _plain(document, value_node, here)
        return merged | result
    if isinstance(node, yaml.SequenceNode):
        return [_plain(document, each, (*path, i)) for i, each in enumerate(node.value)]
    if node.tag in NUMBERS and len(node.value) > NUMBER_CHARS_MAX:
        # Some forms of numbers (`1:30:00`) take time that grows with the square of their length.
        raise document.error(path, "is too long for a number; put it in quotes")
    try:
        return yaml.constructor.SafeConstructor().construct_object(node, deep=True)
    except (yaml.YAMLError, ValueError) as error:
        # `=` alone, or a date that is none: YAML calls them values that it cannot make.
        raise document.error(path, "cannot be read as a value; put it in quotes") from error


def _merged(document: Document, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
    """What `<<: *other` adds to a mapping, which its own keys override; of several the first."""
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if key_node.tag != MERGE:
            continue
        several = isinstance(value_node, yaml.SequenceNode)
        for each in value_node.value if several else [value_node]:
            if not isinstance(each, yaml.MappingNode):
                document.lines[*path, "<<"] = key_node.start_mark.line + 1
                raise document.error((*path, "<<"), "must be an alias of a mapping: `<<: *name`")
            found = _plain(document, each, path) | found
    return found


def convert(document: Document, value: Any, kind: type[Any], path: Path_) -> Any:
    """Check `value` against a struct; raise ConfigurationError with its place."""
    problems = ProblemList()
    found = convert_all(document, value, kind, path, problems)
    problems.raise_found()
    return found


def convert_all(
    document: Document, value: Any, kind: type[Any], path: Path_, problems: ProblemList
) -> Any:
    """Check `value` against a struct; None where it does not fit, after all that is wrong in it.

    What is wrong is taken out of a copy, which is then checked again.
    """
    left, removed = value, list[Path_]()
    while True:
        try:
            made = msgspec.convert(left, kind, dec_hook=decode_hook)
        except msgspec.ValidationError as error:
            place, text, missing = _place_of(error, kind)
            inside = _before_removal(place, removed)
            within = [str(gone[-1]) for gone in removed if gone[:-1] == inside]
            emptied = "of length >=" in text
            if within and (error.__cause__ or emptied or get_close_matches(missing, within, 1)):
                return None  # follows from what was removed
            problems.add(document.error((*path, *inside), in_words(text)))
            remaining = _without(left, place)
            if not place or remaining == left or len(removed) >= PROBLEMS_MAX:
                return None
            removed.append(inside)
            left = remaining
        else:
            return None if removed else made


def _place_of(error: msgspec.ValidationError, kind: type[Any]) -> tuple[Path_, str, str]:
    """Where in a value it is wrong, and what; the field that is missing there, if one is."""
    text = str(error)
    inside: Path_ = ()
    if found := _AT.search(text):
        inside = _parse_path(found.group(1))
        text = text[: found.start()]
    if unknown := _UNKNOWN.search(text):
        fields = getattr(kind_at(kind, inside), "__struct_encode_fields__", ())
        return (*inside, unknown.group(1)), unknown_key(unknown.group(1), fields), ""
    if missing := _MISSING.search(text):
        return inside, f"`{missing.group(1)}` is missing; add it", missing.group(1)
    if text.startswith("Invalid enum value") and (words := words_of(kind_at(kind, inside))):
        text = f"{text}; write one of {', '.join(dict.fromkeys(words))}"
    of_words = kind_at(kind, inside)
    if (found := _TYPE.fullmatch(text)) and get_origin(of_words) is Literal and found[2] in GIVEN:
        text = f"must be one of {', '.join(words_of(of_words))}, not {GIVEN[found[2]]}"
    return inside, text, ""


def _before_removal(path: Path_, removed: list[Path_]) -> Path_:
    """The path as it was before items of lists were removed."""
    found: Path_ = ()
    for part in path:
        if isinstance(part, int):
            items = [gone[-1] for gone in removed if gone and gone[:-1] == found]
            for each in sorted(each for each in items if isinstance(each, int)):
                part += each <= part  # noqa: PLW2901
        found = (*found, part)
    return found


def _without(value: Any, path: Path_) -> Any:
    """A copy without what is at a path."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(value, dict) and key in value:
        if rest:
            return {**value, key: _without(value[key], rest)}
        return {each: value[each] for each in value if each != key}
    if isinstance(value, list) and isinstance(key, int) and key < len(value):
        inner = [_without(value[key], rest)] if rest else []
        return [*value[:key], *inner, *value[key + 1 :]]
    return value


def _parse_path(text: str) -> Path_:
    """Turn `.a[0][...].b` into a path; `[...]` is a mapping's unnamed key, where the path ends."""
    path: list[str | int] = []
    for name, index in re.findall(r"\.([^.\[\]]+)|\[([^\]]*)\]", text):
        if index == "...":
            break
        path.append(name or int(index))
    return tuple(path)
