"""The object store, whichever bus it is on: whole or not at all, and of two writers one."""

import asyncio

import pytest

from schemas.topology import EVIDENCE
from services.bus.protocol.object_store import CHUNK_BYTES
from services.primitives.errors import Conflict, Refused

NAME = "training.n-1.replace-n-1-1"
CHUNKS = f"$O.{EVIDENCE.name}.C.>"


async def put(bus, data: bytes, revision: int = 0, name: str = NAME) -> int:
    return await bus.put_object(EVIDENCE, name, data, metadata={"node": "n-1"}, revision=revision)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 1])
async def test_an_object_is_read_as_it_was_written(any_bus, size):
    """An object of any size keeps its content and its metadata.

    A list names it without its content.
    """
    data = bytes(number % 251 for number in range(size))
    revision = await put(any_bus, data)
    found = await any_bus.get_object(EVIDENCE, NAME)
    assert found is not None
    assert (found.data, found.info.size_bytes, found.info.revision) == (data, size, revision)
    assert found.info.metadata == {"node": "n-1"}
    assert await any_bus.objects(EVIDENCE) == [found.info]
    assert await any_bus.get_object(EVIDENCE, "another") is None


async def test_a_new_content_takes_the_place_of_the_old(any_bus):
    """The chunks of the old content are gone."""
    first = await put(any_bus, b"one")
    second = await put(any_bus, b"two", first)
    found = await any_bus.get_object(EVIDENCE, NAME)
    assert (found.data, found.info.revision) == (b"two", second)
    assert [each.data for each in await any_bus.read(EVIDENCE.stream_name, CHUNKS)] == [b"two"]


async def test_of_many_writers_at_once_exactly_one_wins(any_bus):
    """The writers that lose leave nothing behind."""

    async def write(number: int) -> bool:
        try:
            await put(any_bus, b"%d" % number)
        except Conflict:
            return False
        return True

    won = await asyncio.gather(*(write(number) for number in range(8)))
    assert won.count(True) == 1
    found = await any_bus.get_object(EVIDENCE, NAME)
    assert found.data == b"%d" % won.index(True)
    assert len(await any_bus.read(EVIDENCE.stream_name, CHUNKS)) == 1


async def test_what_a_killed_writer_leaves_behind_harms_nothing(any_bus):
    """Chunks that nothing names are no object, and the next writer has its way."""
    await any_bus.publish(f"$O.{EVIDENCE.name}.C.0123456789abcdef012345", b"half of it")
    assert await any_bus.objects(EVIDENCE) == []
    await put(any_bus, b"whole")
    assert (await any_bus.get_object(EVIDENCE, NAME)).data == b"whole"


async def test_an_object_that_is_not_whole_is_not_given_out(any_bus):
    """Where a full bucket has dropped its oldest chunks, that is what is said."""
    await put(any_bus, bytes(CHUNK_BYTES + 1))
    await any_bus.purge(EVIDENCE.stream_name, CHUNKS)
    with pytest.raises(Refused, match=f"0 of {CHUNK_BYTES + 1} bytes are there"):
        await any_bus.get_object(EVIDENCE, NAME)


async def test_the_client_library_reads_what_we_write(bus, server):
    """The layout is the server's own, so `nats object get` has it too."""
    import nats  # noqa: PLC0415

    await put(bus, b"x" * (CHUNK_BYTES + 7))
    client = await nats.connect(server.url)
    try:
        store = await client.jetstream().object_store(EVIDENCE.name)
        found = await store.get(NAME)
        assert (found.data, found.info.name) == (b"x" * (CHUNK_BYTES + 7), NAME)
        assert [each.name for each in await store.list()] == [NAME]
    finally:
        await client.close()
