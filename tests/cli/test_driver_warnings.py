"""`navarch config validate` warns where a launch ends before its nodes' drivers are given up."""

from pathlib import Path

import pytest

from services.cli.configuration_check import warnings_of
from services.settings.settings_file import load_settings

POOLS = """\
notifier: {type: noop, accept_no_drain: true}
providers: {local: {}, lambda: {}, ours: {type: lambda}}
pools:
  a:
    min_nodes: 0
    max_nodes: 1
    gpu_count: 8
    POOL
    launch_timeout: TIMEOUT
instance_types:
  types:
    lambda: {gpu_8x_b200_sxm6: {gpus: 8, driver_wait: 30m}}
    ours: {gpu_8x_h100_sxm5: {gpus: 8, driver_wait: 5m}}
"""
H100, B200 = "gpu_8x_h100_sxm5", "gpu_8x_b200_sxm6"


@pytest.mark.parametrize(
    ("pool", "timeout", "says"),
    [
        (f"provider: lambda\n    instance_type: {H100}", "10m1s", ""),
        (f"provider: lambda\n    instance_type: {H100}", "10m", f"10m that nodes of {H100}"),
        (f"provider: lambda\n    instance_type: {B200}", "30m", f"30m that nodes of {B200}"),
        (f"provider: lambda\n    instance_type: {B200}", "30m1s", ""),
        (f"provider: ours\n    instance_type: {H100}", "5m1s", ""),
        (f"provider: ours\n    instance_type: {H100}", "5m", f"types: ours: {H100}:`"),
        ("provider: lambda\n    instance_type: b200-8x", "20m", f"types: lambda: {B200}:`"),
        (
            f"providers: [{{name: ours}}, {{name: lambda}}]\n    instance_type: {H100}",
            "9m",
            f"types: lambda: {H100}:`",
        ),
        ("provider: lambda\n    instance_type: gpu_9x_new", "10m", "10m that nodes of gpu_9x_new"),
        ("provider: local\n    instance_type: local-8gpu", "30s", ""),
    ],
)
def test_a_launch_that_ends_first_is_warned_about(
    pool: str, timeout: str, says: str, tmp_path: Path
) -> None:
    """The warning names file, line, key and remedy; simulated nodes load no driver."""
    file = tmp_path / "navarch.yaml"
    file.write_text(POOLS.replace("POOL", pool).replace("TIMEOUT", timeout))
    line = file.read_text().splitlines().index(f"    launch_timeout: {timeout}") + 1
    found = [each for each in warnings_of(load_settings(file, {}), file) if "driver_wait" in each]
    assert bool(found) == bool(says)
    for each in found:
        assert each.startswith(f"{file}:{line}: pools.a.launch_timeout: {timeout} does not exceed")
        assert says in each
