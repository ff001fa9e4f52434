"""`navarch config`: validates a configuration, and stores a cloud's credentials after a test."""

import asyncio
import getpass
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from schemas.settings import PROVIDER_PLUGINS, PluginSettings, Settings
from services.cli import console
from services.cli.command_options import Config, NatsUrl, Output, Yes, confirm
from services.cli.fleet_discovery import settings_of
from services.operator_text.safe_text import escape_line
from services.primitives.atomic_files import write_secret, write_whole
from services.primitives.errors import NavarchError
from services.provisioner.provider_client.cloud_credentials import (
    SecretSource,
    StoredCredentials,
    apply_credentials,
    secret_option,
    store_credentials,
)
from services.provisioner.provider_client.provider import Environment
from services.provisioner.provider_client.provider_errors import ProviderError
from services.settings.dialect import note_lines
from services.settings.plugin_loader import load_plugin, plugin_class
from services.settings.pool_differences import ABSENT, PoolDifference, SettingChange

UNLISTED = (
    "not in the file: it is kept at its last settings with its nodes; remove them with "
    "`navarch down {pool}`"
)


def difference_lines(
    pools: Sequence[PoolDifference], settings: Sequence[SettingChange], file: str
) -> Iterator[str]:
    """Yield a heading for each pool, and a line for each value."""
    for each in pools:
        yield f"pool {each.pool}: {_heading(each)}"
        for setting in each.settings:
            yield f"  {setting.key}: {_value(setting.old)} -> {_value(setting.new)}"
    if settings:
        yield f"other settings: {len(settings)}"
    for setting in settings:
        old, new = setting.old or "(none)", setting.new or "(none)"
        yield f"  {setting.key}: {old} -> {new}"
    if not pools:
        yield f"the pools of the fleet are as {file} has them"


def _heading(difference: PoolDifference) -> str:
    before, after = difference.desired, difference.desired_after
    match difference.change:
        case "added":
            return f"is added, with a desired size of {after}"
        case "unlisted":
            return UNLISTED.format(pool=difference.pool)
        case "changed":
            size = f"; its desired size goes from {before} to {after}" if before != after else ""
            return f"changed settings: {len(difference.settings)}{size}"


def _value(value: Any) -> str:
    return "(none)" if value is ABSENT else msgspec.json.encode(value).decode()


def process_lines(
    processes: Sequence[tuple[str, str, str, str]], file: str, digest: str
) -> Iterator[str]:
    """Yield which processes must be reloaded, and how; each names its text as the logs do."""
    if not processes:
        yield f"every process that answers runs with {file} (text {digest})"
        return
    yield f"These processes run with another text than {file}, which is {digest}:"
    yield console.table(("service", "host", "pid", "text"), processes, painted=False)
    yield (
        f"Put {file} in the place of the configuration of each, then reload it: "
        "`systemctl reload navarch@SERVICE`, or `kill -HUP PID` on its host. Gateways do not "
        "answer here: reload each as well."
    )


if TYPE_CHECKING:
    from services.cli.configuration_change import ConfigurationChange

File = Annotated[Path | None, typer.Argument(help="Default: that of --config.", show_default=False)]
CHECK_SECONDS_MAX: Final = 60.0
DIFFERENT: Final = 3
"""Exit code of `diff` and `apply` where something differs; 1 is an error, as with every command."""

commands = typer.Typer(
    name="config", help="Validate a configuration; store credentials.", no_args_is_help=True
)


def _named(file: Path | None, config: Path | None, command: str) -> Path:
    named = file or config
    if named is None:
        raise NavarchError(f"name the file: navarch config {command} FILE")
    return named


@commands.command("validate")
def validate(
    file: File = None,
    config: Config = None,
) -> None:
    """Report all that is wrong with a configuration.

    Run it where the services run: it also reads the files that the configuration names.
    """
    from services.cli.configuration_check import check_file, warnings_of  # noqa: PLC0415

    named = _named(file, config, "validate")
    configuration = check_file(named, os.environ)
    for note in note_lines(configuration.notes):
        console.write(f"NOTE: {note}")
    for warning in warnings_of(configuration.settings, named):
        console.write(f"WARNING: {warning}")
    settings = configuration.settings
    console.write(
        f"{named} is valid: {len(settings.pools)} pools, {len(settings.providers)} providers"
    )


@commands.command("diff")
def show_differences(
    file: File = None,
    nats_url: NatsUrl = "",
    config: Config = None,
    output: Output = console.Format.TABLE,
) -> None:
    """Show what a file changes of the running fleet.

    Exit code 3: something. Of settings outside the pools only `navarch serve` on this host knows
    what is in force.
    """
    from services.cli.configuration_change import read_change  # noqa: PLC0415

    named = _named(file, config, "diff")
    change = read_change(named, nats_url, config)
    if output.is_data:
        console.write_data(output, change.pools)
    else:
        _write_change(change)
        if change.is_different:
            console.write(f"`navarch config apply {named}` puts it in force")
    if change.is_different:
        raise typer.Exit(DIFFERENT)


@commands.command("apply")
def apply_configuration(
    file: File = None,
    *,
    yes: Yes = False,
    nats_url: NatsUrl = "",
    config: Config = None,
) -> None:
    """Show the same, and put the file in force.

    Where `navarch serve` runs the fleet on this host the file replaces its configuration.
    Elsewhere the processes to reload are named: exit code 3 where there are any.
    """
    from services.cli.commands.config_commands import process_lines  # noqa: PLC0415
    from services.cli.configuration_change import put_in_force, read_change  # noqa: PLC0415

    named = _named(file, config, "apply")
    change = read_change(named, nats_url, config)
    _write_change(change)
    if change.served is None:
        others = [(each.service, each.host, each.pid, each.configuration) for each in change.others]
        for line in process_lines(others, str(named), change.text_id):
            console.write(line)
        raise typer.Exit(DIFFERENT if others else 0)
    if change.is_in_force:
        console.write(f"{named} is in force already (text {change.text_id})")
        return
    target = change.served.config
    replaces = f"It replaces {target}. " if str(named.absolute()) != target else ""
    question = f"{replaces}Restart every process with it, one after the other?"
    confirm(question, yes=yes, instead="`navarch config diff`")
    if late := put_in_force(change, change.served):
        raise NavarchError(
            f"{late} was not ready in time with {named}, and the processes after it were left as "
            "they were: see the log of navarch serve, and apply it again"
        )
    console.write(f"every process runs with {target} (text {change.text_id})")


def _write_change(change: "ConfigurationChange") -> None:
    from services.cli.commands.config_commands import difference_lines  # noqa: PLC0415

    for line in difference_lines(change.pools, change.settings, str(change.file)):
        console.write(escape_line(line))


@commands.command("explain")
def explain_values(
    file: File = None,
    config: Config = None,
    *,
    given: Annotated[
        bool, typer.Option("--given", help="Only values that are not defaults.")
    ] = False,
    under: Annotated[
        str, typer.Option("--under", metavar="KEY", help="Only this part: pools.training")
    ] = "",
) -> None:
    """Print every effective value and its origin."""
    from services.cli.configuration_check import check_file  # noqa: PLC0415
    from services.cli.plugin_options import loaded_options  # noqa: PLC0415
    from services.settings.setting_origins import DEFAULT, explain  # noqa: PLC0415

    named = _named(file, config, "explain")
    configuration = check_file(named, os.environ)
    options = loaded_options(configuration.settings, named)
    for each in explain(configuration, os.environ, options):
        key = ".".join(map(str, each.path))
        if (given and each.origin == DEFAULT) or not f"{key}.".startswith(under and f"{under}."):
            continue
        console.write(f"{key}: {each.value}  # {each.origin}")


@commands.command("schema")
def print_schema(
    *,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="A page of every key, for readers.")
    ] = False,
) -> None:
    """Print a JSON Schema of the configuration, for editors."""
    from services.cli.plugin_options import known_options  # noqa: PLC0415
    from services.settings.settings_page import settings_page  # noqa: PLC0415
    from services.settings.settings_schema import settings_schema  # noqa: PLC0415

    if markdown:
        console.write(settings_page(known_options()).rstrip())
        return
    schema = msgspec.json.encode(settings_schema(known_options()))
    console.write(msgspec.json.format(schema, indent=2).decode())


@commands.command("set-credentials")
def set_credentials(
    provider: Annotated[
        str, typer.Argument(help="Its name in the configuration.", show_default=False)
    ],
    key_file: Annotated[
        Path | None, typer.Option("--key-file", help="The file that holds the secret.")
    ] = None,
    key_env: Annotated[
        str, typer.Option("--key-env", help="The provisioner's environment variable with it.")
    ] = "",
    key_command: Annotated[
        str, typer.Option("--key-command", help="A command that prints it.")
    ] = "",
    *,
    key_stdin: Annotated[
        bool, typer.Option("--key-stdin", help="Read it from standard input, and store it.")
    ] = False,
    project: Annotated[str, typer.Option("--project", help="Of Google Cloud.")] = "",
    profile: Annotated[str, typer.Option("--profile", help="Of the AWS configuration.")] = "",
    options: Annotated[
        list[str] | None, typer.Option("--set", metavar="OPTION=VALUE", help="Another option.")
    ] = None,
    option: Annotated[
        str, typer.Option("--option", help="The option that takes a file with the secret.")
    ] = "",
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Try them by listing instances.")
    ] = True,
    config: Config = None,
) -> None:
    """Store a provider's credentials, or where they are.

    Run it where the provisioner runs; it reads them when it starts. A provider that is not
    configured yet is added to the configuration, or to a new one.
    """
    from services.cli.provider_block import NEW_FILE, check_credentials  # noqa: PLC0415

    file = config or NEW_FILE
    there = config or (NEW_FILE if NEW_FILE.exists() else None)
    settings = settings_of(there)
    plain = _plain(options or [], project=project, profile=profile)
    text, named = "", bool(plain)
    if provider not in settings.providers:
        settings, text = _with_provider(file, provider, plain, there)
        plain = {}
    configured = settings.providers[provider]
    config = there
    takes = secret_option(plugin_class(PROVIDER_PLUGINS, configured, config), option)
    ways: dict[str, str] = {
        "file": str(key_file.absolute()) if key_file else "",
        "env": key_env,
        "command": key_command,
        "stored": "-" if key_stdin else "",
    }
    source, secret = _secret(provider, takes, ways, needed=not named)
    kept = StoredCredentials(options=plain, secret=source)
    check_credentials(settings, there, provider, kept, secret)
    if check:
        count = asyncio.run(_count_instances(provider, configured, kept, secret, settings, config))
        console.write(f"{provider} accepts them: it lists {count} instances")
    if text:
        write_whole(file, text.encode())
        console.write(f"{file} has the provider now: navarch serve --config {file}")
    if kept != StoredCredentials():
        stored = store_credentials(Path(settings.data_dir), provider, kept, secret)
        console.write(f"stored in {stored}; they override the configuration")
    console.write("The provisioner reads them when it starts: restart it (or navarch serve).")


def _with_provider(
    file: Path, provider: str, plain: dict[str, str], there: Path | None
) -> tuple[Settings, str]:
    """Show the block of a provider that is not configured yet; the settings and text with it."""
    from services.cli import provider_block  # noqa: PLC0415
    from services.settings.settings_file import parse_settings  # noqa: PLC0415

    plugin_class(PROVIDER_PLUGINS, PluginSettings(type=provider), there)
    if provider == "aws" and "region" not in plain:
        region = provider_block.profile_region(plain.get("profile", ""), os.environ)
        plain = plain | ({"region": region} if region else {})
    block = provider_block.provider_block(provider, plain)
    console.write(f"{file} gets this provider:\nproviders:\n{block.rstrip()}")
    text = provider_block.with_provider(there.read_text("utf-8") if there else "", block)
    return parse_settings(str(file), text, os.environ), text


def _plain(options: list[str], **named: str) -> dict[str, str]:
    """The options that are not secret."""
    found = {name: value for name, value in named.items() if value}
    for each in options:
        name, equals, value = each.partition("=")
        if not equals:
            raise NavarchError(f"--set {each}: write OPTION=VALUE")
        found[name] = value
    return found


def _secret(
    provider: str, takes: str, ways: dict[str, str], *, needed: bool
) -> tuple[SecretSource | None, str]:
    """Where the secret is, and the secret itself if it is to be stored."""
    given = [kind for kind, value in ways.items() if value]
    if len(given) > 1:
        raise NavarchError("name one of --key-file, --key-env, --key-command and --key-stdin")
    if not takes and (given or needed):
        raise NavarchError(
            f"{provider} takes no file with a secret: give --profile or --set OPTION=VALUE, or "
            "name the option with --option"
        )
    if not given and not needed:
        return None, ""
    kind = given[0] if given else "stored"
    if kind != "stored":
        return SecretSource(kind=kind, where=ways[kind], option=takes), ""  # type: ignore[arg-type]
    if given or not sys.stdin.isatty():
        secret = sys.stdin.read()
    else:
        secret = getpass.getpass(f"{provider}'s secret (it is not shown): ")
    if not secret.strip():
        raise NavarchError("no secret was given: nothing was stored")
    return SecretSource(kind="stored", option=takes), secret.strip() + "\n"


async def _count_instances(
    provider: str,
    configured: PluginSettings,
    kept: StoredCredentials,
    secret: str,
    settings: Settings,
    config: Path | None,
) -> int:
    """Log in to the provider; return how many instances it lists."""
    with tempfile.TemporaryDirectory() as folder:
        stored = Path(folder) / "key"
        if secret:
            write_secret(stored, secret)
        plugin = apply_credentials(configured, kept, stored, os.environ)
        kind, options = load_plugin(PROVIDER_PLUGINS, plugin, config)
        environment = Environment(
            name=provider,
            fleet=settings.fleet,
            nats_url=settings.nats.url,
            data_dir=Path(settings.data_dir),
        )
        made = kind(options=options, environment=environment)
        try:
            async with asyncio.timeout(CHECK_SECONDS_MAX):
                return len(await made.list())
        except ProviderError as error:
            raise NavarchError(
                f"{provider} refuses them: {error}. Nothing was stored; --no-check stores them"
            ) from error
        except TimeoutError as error:
            raise NavarchError(
                f"{provider} did not answer within {CHECK_SECONDS_MAX:g} s. Nothing was stored"
            ) from error
        finally:
            await made.close()
