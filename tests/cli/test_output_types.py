"""`-o json` of every command is of the form that its JSON Schema documents."""

from pathlib import Path
from typing import Any, Final

import jsonschema
import msgspec
import pytest
from typer.main import get_command

from schemas import subjects
from schemas.log_excerpts import LogExcerpt
from schemas.messages import encode
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Headers
from services.cli.app import app
from services.cli.output_types import ORDERS, OUTPUTS, UNDECLARED, schema
from tests.cli.begun_names import SAGA
from tests.cli.test_beginnings import parameters
from tests.cli.test_http_commands import POLICY, Place, fill

PAGE: Final = Path(__file__).parents[2] / "docs" / "command-output.schema.json"
LINES: Final = {
    **{each: f"{each} training-1" for each in (*ORDERS, "get", "diagnose", "release")},
    **{f"{each} --dry-run": f"{each} training-1 --dry-run" for each in ORDERS},
    **{f"saga {each}": f"saga {each} {SAGA}" for each in ("show", "cancel", "retry", "proceed")},
    **{f"pool {each}": f"pool {each} training" for each in ("status", "history")},
    "scale": "scale training 3",
    "incident": "incident --since 1h",
    "scale --dry-run": "scale training 3 --dry-run",
    "why": "why training-2",
    "timeline": "timeline training-2",
    "evidence NODE": "evidence training-9",
    "logs": "logs notifier",
    "forget": "forget training-1 --dry-run",
    "hold": "hold training-1 --for 1h --reason x",
    "saga list --all": "saga list --all --since 300d",
    "policy test": f"policy test {POLICY}",
    "breaker open": "breaker open training --reason x",
    "breaker close": "breaker close training --reason x",
    "hardware add": "hardware add gpu GPU-1 --reason x",
    "hardware forget": "hardware forget gpu GPU-1",
    "gateway token create": "gateway token create ada --role viewer",
    "workload check": "workload check training",
    "stop": "stop --pool training --reason tested",
    "resume": "resume --pool training",
    "workload done": "workload done training-1",
    "plugins list": "plugins list --all",
}
"""A declared output -> the command that is run, where it takes more than its name."""
ELSEWHERE: Final = frozenset({"backup", "restore"})
"""Commands that are run with a server of their own: tests/cli/test_backup_commands.py."""
ATTENTION: Final = 3
"""Exit code of commands that find something wrong: here some do."""


def test_the_page_is_what_the_types_say() -> None:
    """A field that is added changes the page, and one that is taken away is seen in the review."""
    command = "python -m services.cli.output_types > docs/command-output.schema.json"
    written = msgspec.json.format(msgspec.json.encode(schema()), indent=2) + b"\n"
    assert PAGE.read_bytes() == written, f"run: {command}"


def test_every_command_that_writes_json_has_a_type() -> None:
    """A new one fails this until it is declared."""
    writing = {name for name, each in parameters(get_command(app)) if each.name == "output"}
    assert writing - OUTPUTS.keys() == UNDECLARED


def closed(part: Any) -> Any:
    """Return the schema with no other keys than those that it names."""
    if isinstance(part, list):
        return [closed(each) for each in part]
    if not isinstance(part, dict):
        return part
    found = {key: closed(each) for key, each in part.items()}
    return found | ({"additionalProperties": False} if "properties" in part else {})


@pytest.mark.slow
async def test_each_command_writes_what_is_documented(
    manager: NatsBus, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No key is missing, and there is none beside those that the schema names."""
    monkeypatch.chdir(tmp_path)
    command = get_command(app)
    monkeypatch.setattr("services.cli.command_table.command_line", lambda *_: command)
    await fill(manager)

    async def logs(_: bytes, __: Headers) -> bytes:
        return encode(LogExcerpt(source="notifier-1", lines=()))

    await manager.answer(subjects.service_logs("notifier"), logs)
    place, whole = Place(server.url, ""), closed(schema())
    for name in OUTPUTS.keys() - ELSEWHERE:
        code, out, err = await place.over_bus(f"{LINES.get(name, name)} -o json")
        assert code in (0, ATTENTION), (name, out, err)
        part = {**whole["properties"][name], "$defs": whole["$defs"]}
        wrong = [*jsonschema.Draft202012Validator(part).iter_errors(msgspec.json.decode(out))]
        assert wrong == [], (name, [each.message for each in wrong], out)
