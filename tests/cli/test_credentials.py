"""`navarch config set-credentials`: checked at a cloud, stored with mode 0600, never printed."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from schemas.settings import PluginSettings
from services.cli.app import app
from services.primitives.errors import ConfigurationError
from services.provisioner.provider_client.cloud_credentials import (
    SecretSource,
    StoredCredentials,
    add_stored_credentials,
    apply_credentials,
    credentials_file,
)
from services.provisioner.providers.lambda_cloud import LambdaProvider
from tests.provisioner.lambda_server import KEY, LambdaServer, serving


@pytest.fixture
async def cloud() -> AsyncIterator[LambdaServer]:
    """Provide a strict server of Lambda's API on loopback."""
    async with serving() as server:
        yield server


@pytest.fixture
def config(tmp_path: Path, cloud: LambdaServer) -> Path:
    """A configuration whose provider `lambda` uses that server."""
    file = tmp_path / "navarch.yaml"
    provider = f"base_url: {cloud.url}\n    request_interval: 1ms\n"
    file.write_text(f"data_dir: {tmp_path}/data\nproviders:\n  lambda:\n    {provider}")
    return file


async def navarch(config: Path, *arguments: str, given: str = "", **env: str) -> tuple[int, str]:
    """Run the command; return its exit code and output."""
    words = ["config", "set-credentials", "lambda", "--config", str(config), *arguments]
    ran = await asyncio.to_thread(CliRunner().invoke, app, words, input=given, env=env)
    return ran.exit_code, f"{ran.output}{ran.exception or ''}"


async def test_a_secret_is_checked_and_stored_readable_only_by_its_owner(
    config: Path, cloud: LambdaServer
) -> None:
    """The secret is not printed, and the provisioner reads it."""
    code, said = await navarch(config, "--key-stdin", given=f"{KEY}\n")
    data = config.parent / "data"
    plugin = add_stored_credentials("lambda", PluginSettings(type="lambda"), data)

    assert 0 == code, said
    assert "lambda accepts them: it lists 0 instances" in said
    assert KEY not in said
    assert 1 == cloud.called("/instances")
    assert KEY == Path(plugin.options["api_key_file"]).read_text().strip()
    modes = [each.stat().st_mode & 0o777 for each in sorted((data / "credentials").iterdir())]
    assert [0o600, 0o600] == modes
    assert 0o700 == (data / "credentials").stat().st_mode & 0o777
    assert KEY not in credentials_file(data, "lambda").read_text()


async def test_refused_credentials_are_not_stored(config: Path) -> None:
    """Unless the operator gives --no-check; the refused secret is not printed either."""
    code, said = await navarch(config, "--key-stdin", given="wrong-key-0815")
    kept = credentials_file(config.parent / "data", "lambda")

    assert 0 != code
    assert "lambda refuses them: " in said
    assert "Nothing was stored" in said
    assert "0815" not in said
    assert not kept.exists()
    assert 0 == (await navarch(config, "--key-stdin", "--no-check", given="wrong-key-0815"))[0]
    assert kept.exists()


async def test_a_reference_is_stored_without_the_secret(config: Path, tmp_path: Path) -> None:
    """A file, a variable, or a secret manager's command; each is read for the check."""
    (tmp_path / "key").write_text(KEY)
    rows = (
        (("--key-file", str(tmp_path / "key")), {}),
        (("--key-env", "MY_KEY"), {"MY_KEY": KEY}),
        (("--key-command", f"cat {tmp_path}/key"), {}),
    )
    folder = credentials_file(config.parent / "data", "lambda").parent
    for arguments, environment in rows:
        code, said = await navarch(config, *arguments, **environment)
        assert 0 == code, said
        assert ["lambda.json"] == [each.name for each in folder.iterdir()]
        assert KEY not in (folder / "lambda.json").read_text() + said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--key-env", "A", "--key-file", "b"), "name one of --key-file, --key-env"),
        (("--set", "nonsense"), "--set nonsense: write OPTION=VALUE"),
        (("--option", "nonsense", "--key-env", "A"), "nonsense: the provider has no such option"),
        (("--key-env", "NOT_SET_ANYWHERE"), "NOT_SET_ANYWHERE: the environment variable"),
        (("--key-command", "false"), "returned no credentials: it ended with 1"),
        (("--key-stdin",), "no secret was given: nothing was stored"),
    ],
)
async def test_invalid_options_are_refused(
    config: Path, arguments: tuple[str, ...], says: str
) -> None:
    """The error says what to give instead; nothing is stored."""
    code, said = await navarch(config, *arguments)

    assert 0 != code
    assert says in " ".join(said.split())
    assert not credentials_file(config.parent / "data", "lambda").exists()


def test_stored_credentials_override_the_configuration(tmp_path: Path) -> None:
    """Option by option; the secret is given to the provider as a file."""
    secret = SecretSource(kind="env", where="MY_KEY", option="api_key_file")
    kept = StoredCredentials(options={"image_family": "ours"}, secret=secret)
    settings = PluginSettings(type="lambda", options={"image_family": "x", "ssh_key": "me"})
    plugin = apply_credentials(settings, kept, tmp_path / "none", {"MY_KEY": "s3cret"})

    assert ("ours", "me") == (plugin.options["image_family"], plugin.options["ssh_key"])
    assert "s3cret" == Path(plugin.options["api_key_file"]).read_text()
    assert "api_key_file" in {each.name for each in msgspec.structs.fields(LambdaProvider.Options)}


def test_an_unreadable_file_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    """The provisioner must not start with other credentials than those that were stored."""
    file = credentials_file(tmp_path, "lambda")
    file.parent.mkdir()
    file.write_text("{")
    with pytest.raises(ConfigurationError, match="navarch config set-credentials lambda"):
        add_stored_credentials("lambda", PluginSettings(type="lambda"), tmp_path)


@pytest.mark.parametrize(
    "before", ["", "# ours\nproviders:\n  local: {}  # this host\npools: {}\n"]
)
def test_a_provider_that_is_not_configured_is_added_to_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """The block is shown, the rest of the file stays, and `validate` accepts the result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    (tmp_path / "config").write_text("[profile ours]\nregion = us-west-2\n")
    file = tmp_path / "navarch.yaml"
    if before:
        file.write_text(before)
    words = ["config", "set-credentials"]
    ran = CliRunner().invoke(app, [*words, "aws", "--profile", "ours", "--no-check"])
    assert ran.exit_code == 0, ran.exception
    block = 'aws:\n    profile: "ours"\n    region: "us-west-2"\n'
    assert block in ran.output
    named = ["lambda", "--no-check", "--key-stdin", "--config", str(file)]
    second = CliRunner().invoke(app, [*words, *named], input="key")
    assert second.exit_code == 0, second.exception
    text = file.read_text()
    assert block in text
    assert "  lambda: {}\n" in text
    assert all(line in text for line in before.splitlines())
    valid = CliRunner().invoke(app, ["config", "validate", str(file)])
    assert valid.exit_code == 0, valid.exception


def test_nothing_is_stored_for_a_configuration_that_is_not_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names what is missing; neither the file nor the credentials are there then."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    words = ["config", "set-credentials", "aws", "--profile", "ours", "--no-check"]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 1
    assert "region" in str(ran.exception)
    assert "nothing was stored" in str(ran.exception)
    assert list(tmp_path.iterdir()) == []
