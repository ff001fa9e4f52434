"""The firmware's UUID of a machine is read, and none that several machines have."""

from pathlib import Path

import pytest

from agent.sources.cloud.cloud_detection import machine_id


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "EC2E1916-9099-7CAF-FD21-012345ABCDEF\n",
            "ec2e1916-9099-7caf-fd21-012345abcdef",
        ),
        ("03000200-0400-0500-0006-000700080009\n", ""),  # of many boards
        ("00000000-0000-0000-0000-000000000000", ""),
        ("FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", ""),
        ("Not Settable", ""),
        ("ec2e1916-9099-7caf-fd21-012345abcdef; reboot", ""),
        ("", ""),
    ],
)
def test_a_machine_has_the_uuid_of_its_firmware(text: str, found: str, tmp_path: Path) -> None:
    """A placeholder would make two machines one."""
    (tmp_path / "product_uuid").write_text(text)
    assert machine_id(tmp_path) == found


def test_a_uuid_that_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    """Only root may read it, and a virtual machine may have none."""
    assert machine_id(tmp_path) == ""
