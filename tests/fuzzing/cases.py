"""One case: what a target makes of bad bytes, and what it must not do."""

import faulthandler
import resource
import time
import traceback
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.fuzzing.mutations import mutate
from tests.fuzzing.targets import Target

SECONDS_MAX: Final = 2.0
"""Of processor time, for one input of 64 KiB at most."""
HANGS_SECONDS: Final = 60.0
"""Then the process ends with a traceback."""
GROWTH_KIB_MAX: Final = 100 * 1_024
"""By which one input may raise the process's largest size."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Describes what a target did that it must not do."""

    kind: str
    detail: str

    def __str__(self) -> str:
        """For a person."""
        return f"{self.kind}\n{self.detail}"


def data_of(seed: str, target: Target, number: int) -> bytes:
    """Return the input of a case."""
    chance = Random(f"{seed}/{target.name}/{number}")
    return mutate(chance, target.corpus)


def check(target: Target, data: bytes) -> Finding | None:
    """Run a target on an input; return what it did wrong."""
    before, began = _largest_kib(), time.process_time()
    faulthandler.dump_traceback_later(HANGS_SECONDS, exit=True)
    try:
        target.run(data)
    except target.allowed:
        pass
    except Exception as error:  # noqa: BLE001 - whatever it is
        where = traceback.extract_tb(error.__traceback__)[-1]
        kind = f"{type(error).__name__} at {where.filename.rpartition('/')[2]}:{where.lineno}"
        return Finding(kind, "".join(traceback.format_exception(error, limit=-6))[-1_500:])
    finally:
        faulthandler.cancel_dump_traceback_later()
    seconds, grown = time.process_time() - began, _largest_kib() - before
    if seconds > SECONDS_MAX:
        return Finding("too slow", f"{seconds:.1f} s for {len(data)} bytes: {data[:200]!r}")
    if grown > GROWTH_KIB_MAX:
        return Finding("too large", f"{grown} KiB for {len(data)} bytes: {data[:200]!r}")
    return None


def _largest_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
