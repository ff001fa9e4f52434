"""Every type of message and record, found in the schemas themselves.

A new type appears here at once, and has no golden until one is written.
"""

import importlib
import json
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

import schemas
from schemas import step_data
from schemas.fleet_queries import NodeView, Page, PoolView, Query, QueryError
from schemas.hardware_denylist import HardwareAdd, HardwareForget
from schemas.messages import Message, Record, message_type
from schemas.operations import REQUESTS

HERE: Final = Path(__file__).parent
SOURCES: Final = HERE / "sources.json"
HAND_MADE: Final = "written by hand"
"""No run produces it."""
STEP_TYPES: Final = tuple(
    each
    for name, each in vars(step_data).items()
    if isinstance(each, type) and name.endswith(("Inputs", "Outputs"))
)
ANSWER_TYPES: Final = (Query, Page, NodeView, PoolView, QueryError, HardwareAdd, HardwareForget)


@dataclass(frozen=True, slots=True)
class Golden:
    """Names one type, and the file with its example."""

    kind: type[Any]
    name: str
    """A message's type; else the class's name, or a request's verb."""
    path: Path

    def __str__(self) -> str:
        """Its name in test IDs."""
        return self.name


def read_sources() -> dict[str, str]:
    """Golden -> the run that wrote it, or `HAND_MADE`."""
    found: dict[str, str] = json.loads(SOURCES.read_bytes())
    return found


def write_sources(sources: dict[str, str]) -> None:
    """Write where each golden comes from."""
    text = json.dumps(dict(sorted(sources.items())), indent=2)
    SOURCES.write_text(f"{text}\n", encoding="utf-8")


def everything() -> list[Golden]:
    """Return the goldens of every type."""
    return [
        *(_golden("messages", message_type(each), each) for each in message_types()),
        *(_golden("records", each.__name__, each) for each in record_types()),
        *(_golden("requests", verb, each) for verb, each in REQUESTS.items()),
        *(_golden("requests", each.__name__, each) for each in ANSWER_TYPES),
        *(_golden("steps", each.__name__, each) for each in STEP_TYPES),
    ]


def message_types() -> list[type[Message]]:
    """Every class of message that has a type of its own, by that type."""
    _import_all()
    found = [
        each
        for each in _below(Message)
        if str(each.__struct_config__.tag).startswith("io.") and _is_ours(each)
    ]
    return sorted(set(found), key=message_type)


def record_types() -> list[type[Record]]:
    """Return every class of record, by name."""
    _import_all()
    found = {each for each in _below(Record) if _is_ours(each)}
    return sorted(found, key=lambda each: each.__name__)


def _golden(folder: str, name: str, kind: type[msgspec.Struct]) -> Golden:
    return Golden(kind, name, HERE / folder / f"{name}.json")


def _below(kind: type[Any]) -> Iterator[type[Any]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


def _is_ours(kind: type[Any]) -> bool:
    return kind.__module__.startswith("schemas.")


def _import_all() -> None:
    for module in pkgutil.iter_modules(schemas.__path__):
        importlib.import_module(f"schemas.{module.name}")
