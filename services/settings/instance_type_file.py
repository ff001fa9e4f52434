"""Reads the catalogue of instance types: the one that ships, with the configuration's added."""

from functools import cache
from pathlib import Path
from typing import Final

from schemas.instance_type_catalogue import InstanceTypes, TypeSpec
from services.settings.configuration_text import read_text
from services.settings.packaged_files import resource
from services.settings.yaml_document import Document, convert, read_document

FILE: Final = "instance-types.yaml"
OTHERS: Final = "*"


def load_instance_types(added: InstanceTypes, settings_file: Path | None) -> InstanceTypes:
    """The shipped catalogue with `added` in it; whatever is wrong names file, line and key."""
    shipped = _shipped(resource(FILE))
    if added == InstanceTypes():
        return shipped
    whole = merged(shipped, added)
    given = Document("(configuration)", {})
    given = _document(settings_file) if settings_file is not None else given
    _check(given, ("instance_types",), added, whole)
    return whole


def with_shipped(added: InstanceTypes) -> InstanceTypes:
    """The shipped catalogue with `added` in it, which is checked elsewhere."""
    return merged(_shipped(resource(FILE)), added)


@cache
def _shipped(path: Path) -> InstanceTypes:
    """The catalogue that ships, read once: it does not change while a process runs."""
    document = _document(path)
    shipped: InstanceTypes = convert(document, document.value, InstanceTypes, ())
    _check(document, (), shipped, shipped)
    return shipped


def merged(base: InstanceTypes, added: InstanceTypes) -> InstanceTypes:
    """One catalogue of two; where both have a type or a name, the second counts."""
    types: dict[str, dict[str, TypeSpec]] = {kind: dict(has) for kind, has in base.types.items()}
    for kind, has in added.types.items():
        types.setdefault(kind, {}).update(has)
    abstract = {name: dict(meant) for name, meant in base.abstract.items()}
    for name, meant in added.abstract.items():
        abstract.setdefault(name, {}).update(meant)
    return InstanceTypes(types=types, abstract=abstract)


def _document(path: Path) -> Document:
    return read_document(str(path), read_text(path))


def _check(
    document: Document, path: tuple[str, ...], part: InstanceTypes, whole: InstanceTypes
) -> None:
    """The types of an abstract name must be in the catalogue, and of one size there."""
    for name, meant in part.abstract.items():
        for kind, types in meant.items():
            here = (*path, "abstract", name, kind)
            if not types:
                raise document.error(here, "names no type; add one, or remove it")
            known = whole.types.get(kind, {})
            for each in types:
                if each not in known and OTHERS not in known:
                    raise document.error(
                        here, f"no type {each!r} under `types: {kind}:`; add it there"
                    )
            sizes = {known[each].gpus for each in types if each in known}
            if len(sizes) > 1:
                raise document.error(
                    here, f"names types of {sorted(sizes)} GPUs; name those of one size"
                )
