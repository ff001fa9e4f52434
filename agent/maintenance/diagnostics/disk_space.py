"""Health check: free disk space. It runs only if NAVARCH_HEALTH_CHECKS names it.

A full disk stops the container runtime, the scheduler's daemon and every checkpoint, and its
symptoms rarely name the disk.
"""

import shutil
from pathlib import Path
from typing import Final

from schemas.node_events import CheckResult

FREE_PERCENT_MIN: Final = 3.0
FREE_BYTES_MIN: Final = 2 * 1024**3
GIB: Final = 1024**3


class DiskSpace:
    """Checks how much of the disk is free: `agent.maintenance.diagnostics.disk_space:DiskSpace`."""

    name = "disk-space"
    interval_seconds = 300.0

    def __init__(self, path: Path = Path("/")) -> None:
        """Look at the file system that holds `place`."""
        self._path = path

    async def run(self) -> CheckResult:
        """Report the free space, and whether it is enough."""
        try:
            usage = shutil.disk_usage(self._path)
        except OSError as error:
            return CheckResult(name=self.name, ok=False, detail=f"{self._path}: {error}")
        percent = 100 * usage.free / usage.total if usage.total else 0.0
        detail = f"{usage.free / GIB:.1f} GiB ({percent:.1f} %) of {self._path} are free"
        ok = percent >= FREE_PERCENT_MIN and usage.free >= FREE_BYTES_MIN
        return CheckResult(name=self.name, ok=ok, detail=detail)
