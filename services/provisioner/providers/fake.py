"""Simulates a provider, with injected faults: for tests, simulations and experiments.

It keeps the contract exactly except for injected faults: no capacity, an answer lost after the
launch took effect, a termination refused, a new instance missing from the list for a while. In a
file (SQLite) it survives its provisioner, and is shared by all replicas on the host.
"""

import asyncio
import contextlib
import fcntl
import sqlite3
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec.structs import replace

from schemas.enums import ProviderErrorKind
from schemas.settings import FilePath, Setting
from services.provisioner.instances.instance_tags import instance_for
from services.provisioner.provider_client.provider import (
    Capabilities,
    Environment,
    Instance,
    ProvisionRequest,
)
from services.provisioner.provider_client.provider_errors import ProviderError

Call = Literal["provision", "terminate", "list", "reboot"]

CALLS_KEPT_MAX: Final = 10_000
BUSY_SECONDS_MAX: Final = 30.0
"""How long a call may wait for the file while another process writes to it."""
STOPPED_SECONDS: Final = 1.0
"""A process that sends a launch, and takes so much longer than it should, was stopped."""


class FakeFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault to inject."""

    call: Call
    """The call that fails."""
    kind: ProviderErrorKind = "TRANSIENT"
    """The kind of its error."""
    times: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    """So many calls fail, and the next succeeds."""
    instance: str = ""
    """Only for this instance; empty: any."""
    zone: str = ""
    """Only in this zone; empty: any."""
    after_success: bool = False
    """The call takes effect, and its answer is lost."""
    hang: bool = False
    """No answer ever comes."""
    retry_after: float | None = None
    """Seconds after which the error says to try again; absent: it does not say."""


_instance: Final = msgspec.json.Decoder(Instance)

TABLES: Final = """
    CREATE TABLE IF NOT EXISTS made (
        serial INTEGER PRIMARY KEY AUTOINCREMENT, provider_id TEXT UNIQUE, name TEXT, token TEXT,
        hidden INTEGER, instance BLOB);
    CREATE INDEX IF NOT EXISTS made_by_token ON made (token);
    CREATE TABLE IF NOT EXISTS orders (
        number INTEGER PRIMARY KEY AUTOINCREMENT, call TEXT, instance TEXT, zone TEXT,
        times INTEGER, fault BLOB);
    CREATE TABLE IF NOT EXISTS calls (
        number INTEGER PRIMARY KEY AUTOINCREMENT, call TEXT, about TEXT);
"""
"""`made`: instances, `hidden` in so many lists; `orders`: faults to inject; `calls`: a log."""


_fault: Final = msgspec.json.Decoder(FakeFault)


class FakeProvider:
    """Instances that exist by name only."""

    class Options(Setting, frozen=True, kw_only=True):
        """Configures `providers: {fake: {gpu_count: 8}}`."""

        gpu_count: Annotated[int, msgspec.Meta(ge=0, le=64)] = 8
        """GPUs of each instance."""
        file: FilePath = ""
        """File of the state; empty: in memory."""
        idempotent: bool = True
        """Whether a repeated token launches nothing; real clouds differ."""
        list_lag_calls: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
        """Number of lists that do not show a new instance yet."""
        list_lag_seconds: Annotated[float, msgspec.Meta(ge=0, le=600)] = 0.0
        """The declared lag."""
        reboots: bool = True
        """Whether it can reboot an instance; real clouds differ."""
        dollars_per_hour: float = 0.0
        """Price of each instance."""
        latency_seconds: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.0
        """How long a launch and a termination take: half before their effect, half after."""
        faults: tuple[FakeFault, ...] = ()

    def __init__(self, *, options: Options, environment: Environment) -> None:
        self._options = options
        self.name = environment.name
        self._database = _open_database(options)
        self._closing = weakref.finalize(self, self._database.close)
        self._never = asyncio.Event()

    @property
    def capabilities(self) -> Capabilities:
        """Return the capabilities that the options give."""
        return Capabilities(
            idempotency_token=self._options.idempotent,
            list_lag_seconds=self._options.list_lag_seconds,
            reboot=self._options.reboots,
            spot=True,
        )

    def inject_fault(self, fault: FakeFault) -> None:
        """Inject one more fault."""
        with self._changing() as database:
            _order(database, fault)

    def clear_faults(self) -> None:
        """Remove every injected fault that has not occurred yet."""
        with self._changing() as database:
            database.execute("DELETE FROM orders")

    def calls(self, call: Call) -> list[str]:
        """Return the calls so far, oldest first: names for provision, else IDs."""
        query = "SELECT about FROM calls WHERE call = ? ORDER BY number"
        return [about for (about,) in self._database.execute(query, (call,))]

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Launch an instance, or return the one of this token."""
        now = asyncio.get_running_loop().time
        late = now() + self._options.latency_seconds + STOPPED_SECONDS
        await self._take_time()
        if now() > late:
            # A request takes effect when it is sent, or never: not when its sender goes on.
            raise ProviderError("NETWORK", "this process was stopped during the request")
        with self._changing() as database:
            _log(database, "provision", request.name)
            order = _take(database, "provision", request.name, request.zone)
            made = None
            if order is None or order.after_success:
                made = self._make(database, request)
        await self._take_time()
        await self._fail(order)
        assert made is not None
        return made

    def _make(self, database: sqlite3.Connection, request: ProvisionRequest) -> Instance:
        if self._options.idempotent:
            known = "SELECT instance FROM made WHERE token = ?"
            for (blob,) in database.execute(known, (request.token,)):
                return _instance.decode(blob)
        hidden = self._options.list_lag_calls
        fresh = "INSERT INTO made (name, token, hidden) VALUES (?, ?, ?)"
        serial = database.execute(fresh, (request.name, request.token, hidden)).lastrowid
        instance = replace(
            instance_for(request, f"{self.name}-{serial:06d}"),
            status="running",
            created_at=datetime.now(UTC),
            dollars_per_hour=self._options.dollars_per_hour,
            tags={**request.labels, "gpus": str(request.gpu_count or self._options.gpu_count)},
        )
        named = "UPDATE made SET provider_id = ?, instance = ? WHERE serial = ?"
        database.execute(named, (instance.provider_id, msgspec.json.encode(instance), serial))
        return instance

    async def terminate(self, provider_id: str) -> None:
        """Remove an instance; success if there is none."""
        await self._take_time()
        with self._changing() as database:
            _log(database, "terminate", provider_id)
            order = _take(database, "terminate", _name_of(database, provider_id) or "", "")
            if order is None or order.after_success:
                database.execute("DELETE FROM made WHERE provider_id = ?", (provider_id,))
        await self._take_time()
        await self._fail(order)

    async def reboot(self, instance: Instance) -> None:
        """Reboot an instance, which only logs the call."""
        await self._take_time()
        with self._changing() as database:
            _log(database, "reboot", instance.provider_id)
            order = _take(database, "reboot", instance.name, "")
            there = _name_of(database, instance.provider_id) is not None
        await self._fail(order)
        if not there:
            raise ProviderError("INVALID", f"there is no instance {instance.provider_id}")

    async def list(self) -> list[Instance]:
        """Return every instance that is not hidden."""
        shown: list[Instance] = []
        with self._changing() as database:
            _log(database, "list", "")
            order = _take(database, "list", "", "")
            if order is None:
                visible = "SELECT instance FROM made WHERE hidden = 0 ORDER BY serial"
                shown = [_instance.decode(blob) for (blob,) in database.execute(visible)]
                database.execute("UPDATE made SET hidden = hidden - 1 WHERE hidden > 0")
        await self._fail(order)
        return shown

    async def close(self) -> None:
        """Close the file; an in-memory state stays."""
        if self._options.file:
            self._closing()

    async def _take_time(self) -> None:
        if self._options.latency_seconds:
            await asyncio.sleep(self._options.latency_seconds / 2)

    async def _fail(self, order: FakeFault | None) -> None:
        if order is None:
            return
        if order.hang:
            await self._never.wait()
        raise ProviderError(order.kind, f"ordered for {order.call}", retry_after=order.retry_after)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Lock the database for one change, across processes too."""
        self._database.execute("BEGIN IMMEDIATE")
        with self._database:
            yield self._database


def _open_database(options: FakeProvider.Options) -> sqlite3.Connection:
    if not options.file:
        return _prepared(options)
    Path(options.file).parent.mkdir(parents=True, exist_ok=True)
    # SQLite waits for no other process while it changes a new file to WAL: "database is locked".
    with Path(f"{options.file}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _prepared(options)


def _prepared(options: FakeProvider.Options) -> sqlite3.Connection:
    database = sqlite3.connect(
        options.file or ":memory:",
        timeout=BUSY_SECONDS_MAX,
        isolation_level=None,
        check_same_thread=False,  # the thread that collects garbage closes it
    )
    database.execute("PRAGMA journal_mode = WAL")
    # Writes must survive a killed provisioner, but not a power loss.
    database.execute("PRAGMA synchronous = OFF")
    fresh = not database.execute("PRAGMA user_version").fetchone()[0]
    if fresh:
        with database:
            database.executescript(f"BEGIN IMMEDIATE;{TABLES}")
            if not database.execute("PRAGMA user_version").fetchone()[0]:
                for fault in options.faults:
                    _order(database, fault)
                database.execute("PRAGMA user_version = 1")
    return database


def _name_of(database: sqlite3.Connection, provider_id: str) -> str | None:
    found = database.execute("SELECT name FROM made WHERE provider_id = ?", (provider_id,))
    row = found.fetchone()
    return str(row[0]) if row else None


def _log(database: sqlite3.Connection, call: Call, about: str) -> None:
    kept = "DELETE FROM calls WHERE number <= ?"
    number = database.execute("INSERT INTO calls (call, about) VALUES (?, ?)", (call, about))
    database.execute(kept, ((number.lastrowid or 0) - CALLS_KEPT_MAX,))


def _order(database: sqlite3.Connection, fault: FakeFault) -> None:
    database.execute(
        "INSERT INTO orders (call, instance, zone, times, fault) VALUES (?, ?, ?, ?, ?)",
        (fault.call, fault.instance, fault.zone, fault.times, msgspec.json.encode(fault)),
    )


def _take(database: sqlite3.Connection, call: Call, instance: str, zone: str) -> FakeFault | None:
    """Take the first fault that matches this call."""
    row = database.execute(
        "SELECT number, fault FROM orders WHERE times > 0 AND call = ?"
        " AND instance IN ('', ?) AND zone IN ('', ?) ORDER BY number LIMIT 1",
        (call, instance, zone),
    ).fetchone()
    if row is None:
        return None
    database.execute("UPDATE orders SET times = times - 1 WHERE number = ?", (row[0],))
    return _fault.decode(row[1])
