"""Finds the live node that has a GPU, by an index that follows the records of all pools."""

from collections.abc import Mapping, Sequence

from schemas.enums import HardwareKind
from schemas.gpu_samples import GpuIdentity
from schemas.node_records import NodeRecord
from services.pool_manager.planner.fixed_identity import is_live, names


class GpuOwners:
    """Finds the node of a GPU without looking at every node.

    A note may be late or missing of a node that has just gone, so that what is found is looked up.
    """

    def __init__(self) -> None:
        """`records` is set to the mirrored records before the first note."""
        self.records: Mapping[str, NodeRecord] = {}
        self._keys: dict[tuple[HardwareKind, str], str] = {}
        self._noted: dict[str, Sequence[GpuIdentity]] = {}

    def note(self, key: str) -> None:
        """Take in a node's record that was read or written."""
        record = self.records.get(key)
        gpus = record.gpus if record is not None and is_live(record) else ()
        before = self._noted.get(key, ())
        if gpus == before:
            return  # nearly every write of a record
        has = set(names(gpus))
        for gone in set(names(before)) - has:
            if self._keys.get(gone) == key:
                del self._keys[gone]
        for each in has:
            if not self.of(*each):
                self._keys[each] = key
        if gpus:
            self._noted[key] = gpus
        else:
            self._noted.pop(key, None)

    def of(self, kind: HardwareKind, value: str) -> str:
        """Return the key of the live node that has a GPU; empty: none has."""
        key = self._keys.get((kind, value), "")
        record = self.records.get(key)
        if record is None or not is_live(record):
            return ""
        return key if (kind, value) in set(names(record.gpus)) else ""
