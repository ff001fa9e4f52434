"""docs/configuration.md matches the code, and its example is a valid configuration."""

import re
from pathlib import Path

from services.cli.configuration_check import check_file
from services.cli.plugin_options import known_options
from services.settings.settings_page import settings_page

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_page_is_up_to_date() -> None:
    """docs/configuration.md is what `navarch config schema --markdown` prints."""
    written = PAGE.read_text(encoding="utf-8").rstrip()
    page = settings_page(known_options()).rstrip()
    assert written == page, "run: navarch config schema --markdown > docs/configuration.md"


def test_example_of_the_page_is_valid(tmp_path: Path) -> None:
    """A new operator who copies the page's example has a configuration that starts."""
    found = re.search(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    file = tmp_path / "navarch.yaml"
    file.write_text(found[1], encoding="utf-8")
    assert set(check_file(file, {}).settings.pools) == {"training"}


def test_every_key_has_a_meaning() -> None:
    """The page says of each key what it does, also of those of the plugins."""
    rows = re.findall(r"^\| (`\w+`) \|.*\| (.*?) \|$", settings_page(known_options()), re.MULTILINE)
    assert len(rows) > 200
    assert not [key for key, meaning in rows if not meaning.strip()]


def test_the_keys_of_a_block_within_a_plugin_are_there() -> None:
    """The page has the keys of blocks within plugins, as slurmrestd's and a schedule period's."""
    page = settings_page(known_options())
    for title, key in (
        ("## `notifier.rest`: `type: slurm`", "token_file"),
        ("## `pools.NAME.metrics.rest`: `type: slurm`", "token_file"),
        ("## `pools.NAME.autoscaling.schedule[]`: `type: scheduled`", "timezone"),
        ("## `providers.NAME.disk`: `type: aws`", "throughput"),
    ):
        section = page.partition(f"{title}\n")[2].partition("\n## ")[0]
        assert f"| `{key}` |" in section, title
