"""Where a machine answers, taken apart."""

import pytest

from schemas.addresses import host_and_port


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.7", ("10.0.0.7", 22)),
        ("10.0.0.7:2201", ("10.0.0.7", 2201)),
        ("gpu-7.example.com:2201", ("gpu-7.example.com", 2201)),
        ("fe80::7", ("fe80::7", 22)),
        ("[fe80::7]", ("fe80::7", 22)),
        ("[fe80::7]:2201", ("fe80::7", 2201)),
        ("gpu-7:70000", ("gpu-7", 22)),
        ("gpu-7:", ("gpu-7", 22)),
        ("", ("", 22)),
    ],
)
def test_an_address_may_name_its_port(address: str, expected: tuple[str, int]) -> None:
    """A port in an address wins; where it has none, or an impossible one, the pool's is used."""
    assert expected == host_and_port(address, 22)
