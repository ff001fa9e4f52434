"""Descriptions of objects in EVIDENCE are checked before they are listed or used as a subject."""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas.topology import EVIDENCE
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import ObjectInfo
from services.cli.commands import evidence_command
from services.cli.console import Format
from services.fleet_client.evidence_lookup import find_evidence, kept_evidence
from services.primitives.errors import NavarchError
from tests.redteam.hostile import HOSTILE
from tests.support.secured import Secured

NOW = datetime(2026, 11, 21, 2, 5, tzinfo=UTC)
REAL = {
    "pool": "a",
    "node": "n1",
    "saga": "replace-n1-1",
    "outcome": "replaced",
    "new_node": "n2",
    "fault_signature": "xid-79",
    "unhealthy_at": "2026-11-21T01:35:00+00:00",
    "restored_at": "2026-11-21T02:05:00+00:00",
    "provider_id": "i-1",
    "gpus": "8",
    "lost_gpu_hours": "4.000000",
    "rule": "off-the-bus",
}
WRONG: Mapping[str, tuple[str, ...]] = {
    "unhealthy_at": ("yesterday", "9" * 400, "2026-11-21T01:35:00"),
    "restored_at": ("x",),
    "lost_gpu_hours": ("many", "nan", "1e999", "9" * 5000),
    "gpus": ("-", "1.5", "9" * 5000),
    "outcome": ("exploded",),
    "node": ("", "../../x", "n" * 5000),
    "pool": ("", "a.b"),
}


def info(name: str, about: Mapping[str, str]) -> ObjectInfo:
    """An object as the server lists it."""
    return ObjectInfo(name=name, size_bytes=1, revision=1, time=NOW, metadata=about)


@pytest.mark.parametrize("output", [Format.TABLE, Format.JSON])
def test_a_hostile_description_hides_no_other_evidence(
    output: Format, capsys: pytest.CaptureFixture[str]
) -> None:
    """`navarch evidence` ended with a traceback for a number or a time that is none."""
    objects = [
        info(f"x{number}", REAL | {field: value})
        for field, values in (WRONG | {"saga": tuple(HOSTILE.values())}).items()
        for number, value in enumerate(values)
    ]
    objects += [info("none", {}), info("..", {"node": "n1"}), info("a.n1.replace-n1-1", REAL)]
    evidence_command.show_list(*kept_evidence(objects), output)
    shown = capsys.readouterr()

    assert "replace-n1-1" in shown.out
    assert "x0" not in shown.out
    assert f"{len(objects) - 1} objects" in shown.err


async def test_evidence_is_found_though_another_description_is_hostile(secured: Secured) -> None:
    """The pool of a capture was taken from its description without a check."""
    metrics = await NatsBus.connect(secured.options("metrics"))
    await metrics.put_object(EVIDENCE, "a.n1.capture", b"{}", metadata={"node": "n1"}, revision=0)
    with pytest.raises(NavarchError, match="no evidence about a node 'n1'"):
        await find_evidence(metrics, "n1")
    await metrics.close()


@pytest.mark.parametrize("nuid", [">", "*", "a.b", "", "x" * 200])
async def test_a_hostile_object_reaches_no_chunks_but_its_own(secured: Secured, nuid: str) -> None:
    """Storing over an object whose chunks are named `>` purged those of all objects."""
    metrics = await NatsBus.connect(secured.options("metrics"))
    await metrics.put_object(EVIDENCE, "kept", b"data", metadata=REAL, revision=0)
    coded = base64.urlsafe_b64encode(b"hostile").decode()
    about: dict[str, Any] = {"name": "hostile", "bucket": EVIDENCE.name, "nuid": nuid}
    about |= {"size": 1, "chunks": 1, "digest": "x"}
    revision = await metrics.publish(f"$O.EVIDENCE.M.{coded}", msgspec.json.encode(about))
    listed = [each.name for each in await metrics.objects(EVIDENCE)]
    assert await metrics.get_object(EVIDENCE, "hostile") is None
    await metrics.put_object(EVIDENCE, "hostile", b"new", metadata=REAL, revision=revision)
    kept = await metrics.get_object(EVIDENCE, "kept")
    again = await metrics.get_object(EVIDENCE, "hostile")
    await metrics.close()

    assert listed == ["kept"]
    assert kept is not None
    assert kept.data == b"data"
    assert again is not None
    assert again.data == b"new"
