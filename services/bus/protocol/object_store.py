"""The object store over a stream's own calls: an object is its chunks and one message about it.

The layout is that of NATS itself (ADR-20), so that `nats object ls EVIDENCE` and `nats object get`
read it. Chunks are stored first and the message about them last: what a killed writer leaves behind
is chunks that nothing names, which age out. What is read is held against its digest.
"""

import base64
import hashlib
import secrets
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from schemas import headers as h
from schemas.stream_specs import ObjectBucketSpec
from services.bus.port import Headers, Object, ObjectInfo, Stored
from services.primitives.errors import Conflict, Refused

CHUNK_BYTES: Final = 131_072
READS_MAX: Final = 3
"""A read during a write finds chunks gone; it begins again with what is there now."""
ROLLUP: Final = "Nats-Rollup"


class _Options(msgspec.Struct):
    max_chunk_size: int = CHUNK_BYTES


class _Meta(msgspec.Struct, omit_defaults=True):
    """The message about an object, in ADR-20's words."""

    name: str
    bucket: str
    nuid: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]{1,64}\Z")]
    """Part of the subject of its chunks."""
    size: int
    chunks: int
    digest: str
    mtime: str = "0001-01-01T00:00:00Z"
    """The reader's clients take the time of storing in its place."""
    options: _Options = msgspec.field(default_factory=_Options)
    metadata: dict[str, str] = {}
    deleted: bool = False


_decoder = msgspec.json.Decoder(_Meta)


class Objects:
    """The object half of a bus; the other half is what it asks for."""

    @abstractmethod
    async def publish(
        self, subject: str, data: bytes, *, msg_id: str = "", headers: Headers | None = None
    ) -> int:
        """Store a message."""

    @abstractmethod
    async def read(self, stream: str, filter_: str, *, after: int = 0) -> list[Stored]:
        """Everything stored under a filter."""

    @abstractmethod
    async def last(self, stream: str, subject: str) -> Stored | None:
        """Return the last message under a subject."""

    @abstractmethod
    async def purge(self, stream: str, filter_: str) -> None:
        """Remove everything stored under a filter."""

    async def put_object(
        self,
        bucket: ObjectBucketSpec,
        name: str,
        data: bytes,
        *,
        metadata: Mapping[str, str],
        revision: int,
    ) -> int:
        """Write an object if `revision` is still its last (0: there is none), else Conflict."""
        stored = await self.last(bucket.stream_name, _subject(bucket, name))
        if (stored.sequence if stored else 0) != revision:
            raise Conflict(f"{bucket.name} {name}: another writer was faster")
        nuid = secrets.token_hex(11)
        chunks = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
        for chunk in chunks:
            await self.publish(_chunks(bucket, nuid), chunk)
        meta = _Meta(
            name=name,
            bucket=bucket.name,
            nuid=nuid,
            size=len(data),
            chunks=len(chunks),
            digest=_digest(data),
            metadata=dict(metadata),
        )
        guarded = {h.EXPECTED_LAST_SUBJECT_SEQ: str(revision), ROLLUP: "sub"}
        encoded = msgspec.json.encode(meta)
        try:
            written = await self.publish(_subject(bucket, name), encoded, headers=guarded)
        except Conflict:
            await self.purge(bucket.stream_name, _chunks(bucket, nuid))
            raise
        if stored is not None and (old := _meta(stored)) is not None:
            await self.purge(bucket.stream_name, _chunks(bucket, old.nuid))
        return written

    async def get_object(self, bucket: ObjectBucketSpec, name: str) -> Object | None:
        """An object, whole; None where there is none of this name."""
        for _ in range(READS_MAX):
            stored = await self.last(bucket.stream_name, _subject(bucket, name))
            meta = _meta(stored) if stored else None
            if stored is None or meta is None or meta.deleted:
                return None
            chunks = await self.read(bucket.stream_name, _chunks(bucket, meta.nuid))
            data, size = b"".join(each.data for each in chunks), meta.size
            if _digest(data) == meta.digest:
                return Object(_info(meta, stored), data)
        raise Refused(
            f"{bucket.name} {name}: {len(data)} of {size} bytes are there; the bucket is full "
            f"and has dropped its oldest ({bucket.bytes_max} bytes may be kept)"
        )

    async def objects(self, bucket: ObjectBucketSpec) -> list[ObjectInfo]:
        """Return what objects there are, oldest first, without their content."""
        stored = await self.read(bucket.stream_name, f"$O.{bucket.name}.M.>")
        found = ((_meta(each), each) for each in stored)
        return [_info(meta, each) for meta, each in found if meta and not meta.deleted]


def _subject(bucket: ObjectBucketSpec, name: str) -> str:
    coded = base64.urlsafe_b64encode(name.encode()).decode()
    return f"$O.{bucket.name}.M.{coded}"


def _chunks(bucket: ObjectBucketSpec, nuid: str) -> str:
    return f"$O.{bucket.name}.C.{nuid}"


def _digest(data: bytes) -> str:
    return f"SHA-256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()}"


def _meta(stored: Stored) -> _Meta | None:
    """What is stored about an object; None where it is unreadable."""
    try:
        return _decoder.decode(stored.data)
    except msgspec.DecodeError:
        return None


def _info(meta: _Meta, stored: Stored) -> ObjectInfo:
    return ObjectInfo(
        name=meta.name,
        size_bytes=meta.size,
        revision=stored.sequence,
        time=stored.time,
        metadata=meta.metadata,
    )
