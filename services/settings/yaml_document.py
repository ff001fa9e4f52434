"""YAML files in which every key has its line, and their values checked against structs.

YAML nodes keep their places, msgspec checks the values, and its path (`$.pools.training.min_nodes`)
is looked up among the places: an error names file, line, key and the remedy.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import yaml

from schemas.duration import decode_hook
from services.primitives.errors import ConfigurationError
from services.settings.type_hints import kind_at, words_of
from services.settings.validation_messages import in_words

DEPTH_MAX: Final = 64
"""Of mappings within lists within mappings: an alias of itself has no end, and the parser recurses
without a limit of its own."""
VALUES_MAX: Final = 200_000
"""Keys and values of a file, some 400 bytes each."""
NUMBER_CHARS_MAX: Final = 64
NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
ALIASED_MAX: Final = 10_000
"""Values that aliases repeat."""
_AT = re.compile(r" - at `(?:key in )?\$(.*)`\Z", re.DOTALL)
_UNKNOWN = re.compile(r"unknown field `([^`]+)`")
_MISSING = re.compile(r"missing required field `([^`]+)`")

Path_ = tuple[str | int, ...]


@dataclass(slots=True)
class Document:
    """A YAML file's value, and the line of every key in it."""

    file: str
    value: Any
    lines: dict[Path_, int] = field(default_factory=dict)
    composed: set[int] = field(default_factory=set)
    """The nodes that have been turned into values; one that comes again is an alias."""
    aliased: int = 0

    def error(self, path: Path_, problem: str) -> ConfigurationError:
        """Say what is wrong where; the nearest known line counts."""
        nearest = path
        while nearest and nearest not in self.lines:
            nearest = nearest[:-1]
        line = self.lines.get(nearest, 1)
        key = ".".join(str(part) for part in path) or "(the whole file)"
        return ConfigurationError(problem, file=self.file, line=line, key=key)


def path_of(key: str) -> Path_:
    """The path of a key such as `pools.training.windows.0`."""
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
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            here = (*path, key)
            if key in result:
                first = document.lines[here]
                document.lines[here] = key_node.start_mark.line + 1
                raise document.error(here, f"is there twice (first on line {first}); remove one")
            document.lines[here] = key_node.start_mark.line + 1
            result[key] = _plain(document, value_node, here)
        return result
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


def convert(document: Document, value: Any, kind: type[Any], path: Path_) -> Any:
    """Check `value` against a struct; raise ConfigurationError with its place."""
    try:
        return msgspec.convert(value, kind, dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        text = str(error)
        inside: Path_ = ()
        if found := _AT.search(text):
            inside = _parse_path(found.group(1))
            text = text[: found.start()]
        if unknown := _UNKNOWN.search(text):
            inside = (*inside, unknown.group(1))
            fields = getattr(kind_at(kind, inside[:-1]), "__struct_encode_fields__", ())
            known = ", ".join(fields) if fields else "nothing"
            text = f"unknown key; known here: {known}"
        elif missing := _MISSING.search(text):
            text = f"`{missing.group(1)}` is missing; add it"
        elif text.startswith("Invalid enum value") and (words := words_of(kind_at(kind, inside))):
            text = f"{text}; write one of {', '.join(words)}"
        raise document.error((*path, *inside), in_words(text)) from error


def _parse_path(text: str) -> Path_:
    """Turn `.a[0][...].b` into a path; `[...]` is a mapping's unnamed key, where the path ends."""
    path: list[str | int] = []
    for name, index in re.findall(r"\.([^.\[\]]+)|\[([^\]]*)\]", text):
        if index == "...":
            break
        path.append(name or int(index))
    return tuple(path)
