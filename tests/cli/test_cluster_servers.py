"""How the servers of a cluster are stated on the command line."""

import pytest

from services.cli.cluster_servers import ClusterServer, cluster_servers
from services.primitives.errors import NavarchError


@pytest.mark.parametrize(
    ("stated", "wrong"),
    [
        (["n1", "n2"], "3 or 5"),
        (["n1", "n1", "n2"], "two servers have one name"),
        (["n1=a", "n2=a", "n3=b"], "two servers have one address"),
        (["n1=a:0", "n2", "n3"], "is no server"),
        (["n1=a:70000", "n2", "n3"], "is no server"),
        (["../n1", "n2", "n3"], "is no server"),
        (["ca", "n2", "n3"], "is no server"),
        (["n1 }", "n2", "n3"], "is no server"),
    ],
)
def test_wrong_servers_are_named(stated: list[str], wrong: str) -> None:
    """They become names of files and lines of a configuration."""
    with pytest.raises(NavarchError, match=wrong):
        cluster_servers(stated)


def test_how_servers_are_stated() -> None:
    """A name alone is the host as well."""
    assert cluster_servers([]) == ()
    assert cluster_servers(["n1", "n2=10.0.0.2", "n3=[fd00::3]:7000"]) == (
        ClusterServer("n1", "n1"),
        ClusterServer("n2", "10.0.0.2"),
        ClusterServer("n3", "fd00::3", 7000),
    )
