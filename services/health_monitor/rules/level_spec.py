"""Reads and checks the levels of a health policy."""

from typing import Annotated, Final

import msgspec

from schemas.duration import Duration
from schemas.enums import FaultKind
from schemas.settings import Setting
from services.health_monitor.rules.telemetry_levels import Level, Reading
from services.primitives.errors import ConfigurationError
from services.settings.yaml_document import Document

LEVEL_SECONDS_MAX: Final = 3600.0


class LevelSpec(Setting, frozen=True, kw_only=True, rename={"for_": "for"}):
    """A level as it is written."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=60)]
    description: str = ""
    reading: Reading
    above: float | None = None
    below: float | None = None
    bits: Annotated[int, msgspec.Meta(ge=1)] | None = None
    until: float | None = None
    for_: Duration
    kind: FaultKind


def level_of(document: Document, index: int, spec: LevelSpec) -> Level:
    """Check one level of a policy file and make it ready."""

    def wrong(key: str, problem: str) -> ConfigurationError:
        return document.error(("levels", index, key), f"level {spec.name!r}: {problem}")

    names = [each["name"] for each in document.value["levels"][:index]]
    if spec.name in names:
        raise wrong("name", f"is given twice (first as level {names.index(spec.name) + 1}); rename")
    if sum(bound is not None for bound in (spec.above, spec.below, spec.bits)) != 1:
        raise wrong("reading", "needs one bound: above, below or bits; write exactly one")
    if not 0 < spec.for_ <= LEVEL_SECONDS_MAX:
        raise wrong("for", "must be above 0s and at most 1h; change it")
    if spec.until is not None:
        if spec.bits is not None:
            raise wrong("until", "goes with above or below; bits are over when they are gone")
        if spec.above is not None and spec.until > spec.above:
            raise wrong("until", f"must not be higher than {spec.above:g}, where it begins")
        if spec.below is not None and spec.until < spec.below:
            raise wrong("until", f"must not be lower than {spec.below:g}, where it begins")
    bound = spec.above if spec.above is not None else spec.below
    return Level(
        name=spec.name,
        description=" ".join(spec.description.split()),
        reading=spec.reading,
        above=spec.above,
        below=spec.below,
        bits=spec.bits,
        until=spec.until if spec.until is not None else bound or 0.0,
        for_seconds=float(spec.for_),
        kind=spec.kind,
    )
