"""User data, validated by cloud-init's own schema."""

import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from schemas.saga_params import LaunchSpec
from schemas.settings import AgentSettings, NatsSettings
from services.cli.nats_config_files import SIGNING_FILE
from services.provisioner.bootstrap.user_data import BootstrapTemplates
from services.provisioner.instances import instance_decisions
from tests.support.secured import nats_config

CLOUD_INIT = shutil.which("cloud-init")
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(CLOUD_INIT is None, reason="no cloud-init here: apt-get install cloud-init"),
]


@pytest.mark.parametrize("secured", [True, False])
def test_user_data_is_valid_for_cloud_init(tmp_path: Path, secured: bool) -> None:
    """The user data is valid with credentials, and on an open bus."""
    place = nats_config(tmp_path / "bus")
    signing = str(place / SIGNING_FILE) if secured else ""
    templates = BootstrapTemplates(
        NatsSettings(agent_signing_file=signing), AgentSettings(), tmp_path
    )
    launch = LaunchSpec(fleet="f", provider="aws", instance_type="t", user_data="auto")
    record = instance_decisions.intended_record("web", "web-1", launch, "saga", datetime.now(UTC))
    file = tmp_path / "user-data"
    file.write_text(templates.user_data(record))
    assert CLOUD_INIT is not None
    done = subprocess.run(
        [CLOUD_INIT, "schema", "--config-file", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (0, "") == (done.returncode, done.stderr.strip())
    assert "Valid" in done.stdout
