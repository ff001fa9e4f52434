"""Reads the catalogues of XIDs and SXIDs in `config/`: they inform, the policy decides."""

from typing import Literal, TypeVar

from schemas.settings import Setting
from services.settings.packaged_files import resource
from services.settings.yaml_document import convert, read_document

T = TypeVar("T")


class CodeName(Setting, frozen=True, kw_only=True):
    """Holds a code and NVIDIA's short name of it."""

    code: int
    name: str


class XidEntry(CodeName, frozen=True, kw_only=True):
    """Describes one XID in use."""

    mnemonic: str
    description: str
    action: str
    """NVIDIA's immediate action in its own word; empty where it says nothing."""
    generations: tuple[str, ...] = ()


class XidCatalog(Setting, frozen=True, kw_only=True):
    """Holds the content of `config/xid-catalog.yaml`."""

    version: int
    codes: tuple[XidEntry, ...]
    unused: tuple[CodeName, ...] = ()
    """Codes that no present GPU uses."""


class SxidEntry(CodeName, frozen=True, kw_only=True):
    """Describes one SXID of an NVSwitch."""

    description: str
    severity: Literal["non-fatal", "fatal", "always-fatal", "other"]


class SxidCatalog(Setting, frozen=True, kw_only=True):
    """Holds the content of `config/sxid-catalog.yaml`."""

    version: int
    codes: tuple[SxidEntry, ...]


def load_xids() -> XidCatalog:
    """Load the XID catalogue."""
    return _load("xid-catalog.yaml", XidCatalog)


def load_sxids() -> SxidCatalog:
    """Load the SXID catalogue."""
    return _load("sxid-catalog.yaml", SxidCatalog)


def _load(name: str, kind: type[T]) -> T:
    path = resource(name)
    document = read_document(str(path), path.read_text(encoding="utf-8"))
    found: T = convert(document, document.value, kind, ())
    return found
