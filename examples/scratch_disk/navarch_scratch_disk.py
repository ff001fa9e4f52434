"""The health check scratch-disk of Navarch's agent: jobs can write on the node's scratch disk.

The free space is compared with a least one, and a file is written, read back from the disk and
compared: a disk that has become read-only, or that returns what was not written, has space enough.

Installed beside the agent it runs. The environment of the agent names the folder, SCRATCH_FOLDER;
/scratch without it.
"""

import os
import shutil
from pathlib import Path
from tempfile import TemporaryFile
from typing import ClassVar, Final

from navarch.schemas.node_events import CheckResult

FOLDER: Final = "/scratch"
SAMPLE_BYTES: Final = 2**20


class ScratchDisk:
    """Tests this host's scratch disk."""

    name = "scratch-disk"
    interval_seconds = 300.0
    free_bytes_min: ClassVar[int] = 10 * 2**30

    def __init__(self) -> None:
        """Find the folder: a check has no options, and is made once."""
        self._folder = Path(os.environ.get("SCRATCH_FOLDER") or FOLDER)

    async def run(self) -> CheckResult:
        """Test the disk, and say in one sentence what was found."""
        try:
            free = shutil.disk_usage(self._folder).free
            detail = f"{free >> 20} MiB are free on {self._folder}"
            if free < self.free_bytes_min:
                detail += f", fewer than {self.free_bytes_min >> 20}"
                return self._result(ok=False, detail=detail)
            same = _read_back(self._folder, os.urandom(SAMPLE_BYTES))
        except OSError as error:
            problem = error.strerror or type(error).__name__
            return self._result(ok=False, detail=f"{self._folder} cannot be used: {problem}")
        if not same:
            detail = f"a file on {self._folder} does not have what was written into it"
        return self._result(ok=same, detail=detail)

    def _result(self, *, ok: bool, detail: str) -> CheckResult:
        return CheckResult(name=self.name, ok=ok, detail=detail)


def _read_back(folder: Path, sample: bytes) -> bool:
    """Return whether a new file has what is written into it; the file has no name to be left."""
    with TemporaryFile(dir=folder) as file:
        file.write(sample)
        file.flush()
        os.fsync(file.fileno())
        # The kernel would answer from memory, without a look at the disk.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return os.pread(file.fileno(), len(sample), 0) == sample
