"""Names XID and SXID codes by the shipped catalogues; for people, never for decisions."""

import logging
from functools import cache

from services.primitives.errors import ConfigurationError

log = logging.getLogger(__name__)


def name_of(kind: str, code: int) -> str:
    """Name a fault's code; an unknown code is named by its number."""
    if kind not in ("xid", "sxid"):
        return kind.replace("_", " ")
    return _names().get((kind, code), f"{kind.upper()} {code}")


@cache
def _names() -> dict[tuple[str, int], str]:
    # Imported at the first XID, because most agents never see one.
    from services.settings.xid_catalogues import load_sxids, load_xids  # noqa: PLC0415

    try:
        xids, sxids = load_xids(), load_sxids()
    except (ConfigurationError, OSError) as error:
        log.warning("faults are published without the names of their codes: %s", error)
        return {}
    return {
        **{("xid", each.code): each.name for each in (*xids.unused, *xids.codes)},
        **{("sxid", each.code): each.name for each in sxids.codes},
    }
