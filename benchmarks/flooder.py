"""Keeps so many hostile connections open to a port, and opens another for each that ends.

It is a process of its own beside what is measured: `python -m benchmarks.flooder KIND PORT COUNT`.
"""

import asyncio
import json
import signal
import sys
from typing import Final

import uvloop

from services.runtime.process_http import allow_open_files

SENT: Final = {
    "bus": b'CONNECT {"verbose":false,"name":"flood"}\r\nPING\r\n',
    "unfinished": b"GET /api/v1/pools HTTP/1.1\r\nHost: x\r\nX-Long: ",
    "metrics": b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
}
LIFE_SECONDS: Final = 2.0
"""After so long a connection is closed and opened again, as by one who tries to be the newest."""
OPENING: Final = 32
"""Connections that are opened at once."""
REST_SECONDS: Final = 0.05
"""After one that was refused."""


class Flooder:
    """Opens connections, and reads what comes until they end."""

    def __init__(self, kind: str, port: int) -> None:
        """Send what this kind of flood sends."""
        self._sent = SENT[kind]
        self._port = port
        self._opening = asyncio.Semaphore(OPENING)
        self.opened = 0
        self.refused = 0

    async def keep(self) -> None:
        """Keep one connection open, for ever."""
        while True:
            try:
                async with self._opening:
                    reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError:
                self.refused += 1
                await asyncio.sleep(REST_SECONDS)
                continue
            self.opened += 1
            writer.write(self._sent)
            try:
                async with asyncio.timeout(LIFE_SECONDS):
                    while await reader.read(65_536):
                        writer.write(self._sent if self._sent.startswith(b"GET /metrics") else b"")
            except (OSError, TimeoutError):
                pass
            writer.transport.abort()


async def _main(kind: str, port: int, count: int) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    allow_open_files()
    flooder = Flooder(kind, port)
    keeping = [asyncio.create_task(flooder.keep()) for _ in range(count)]
    await stopping.wait()
    for each in keeping:
        each.cancel()
    await asyncio.wait(keeping)
    print(json.dumps({"opened": flooder.opened, "refused": flooder.refused}))


if __name__ == "__main__":
    uvloop.run(_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
