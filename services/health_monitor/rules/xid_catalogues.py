"""Reads the catalogues of XIDs and SXIDs in `config/`: they inform, the policy decides."""

from typing import Literal

from schemas.settings import Setting
from services.settings.packaged_files import resource
from services.settings.yaml_document import convert, read_document


class XidEntry(Setting, frozen=True, kw_only=True):
    """One XID in use."""

    code: int
    mnemonic: str
    description: str
    action: str
    """NVIDIA's immediate action in its own word; empty where it says nothing."""
    generations: tuple[str, ...] = ()


class XidCatalog(Setting, frozen=True, kw_only=True):
    """`config/xid-catalog.yaml`."""

    version: int
    codes: tuple[XidEntry, ...]
    unused: tuple[int, ...] = ()


class SxidEntry(Setting, frozen=True, kw_only=True):
    """One SXID."""

    code: int
    name: str
    description: str
    severity: Literal["non-fatal", "fatal", "always-fatal", "other"]


class SxidCatalog(Setting, frozen=True, kw_only=True):
    """`config/sxid-catalog.yaml`."""

    version: int
    codes: tuple[SxidEntry, ...]


def load_xids() -> XidCatalog:
    """Load the XID catalogue."""
    path = resource("xid-catalog.yaml")
    document = read_document(str(path), path.read_text(encoding="utf-8"))
    found: XidCatalog = convert(document, document.value, XidCatalog, ())
    return found


def load_sxids() -> SxidCatalog:
    """Load the SXID catalogue."""
    path = resource("sxid-catalog.yaml")
    document = read_document(str(path), path.read_text(encoding="utf-8"))
    found: SxidCatalog = convert(document, document.value, SxidCatalog, ())
    return found
