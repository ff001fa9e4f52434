"""The servers of a cluster are stated on the command line."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from services.cli.cluster_servers import ClusterServer, cluster_servers
from services.cli.nats_config_files import CLIENTS_FILE, CONF, write
from services.primitives.errors import NavarchError

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
WHERE = {"store": "/data", "listen": "0.0.0.0:4222", "http": "127.0.0.1:8222"}
THREE = cluster_servers(["n1", "n2", "n3"])


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
    """A wrong server is refused: servers become names of files and lines of a configuration."""
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


@pytest.mark.parametrize("servers", [(), cluster_servers(["n1", "n2", "n4"])])
def test_a_later_run_must_name_the_same_servers(
    tmp_path: Path, servers: tuple[ClusterServer, ...]
) -> None:
    """A later run with fewer names is refused.

    The services' configuration would then name one server, and one replica.
    """
    write(tmp_path, "f", NOW, **WHERE, servers=THREE)
    before = (tmp_path / CLIENTS_FILE).read_text()
    with pytest.raises(NavarchError, match="cluster of n1, n2, n3: name each"):
        write(tmp_path, "f", NOW, **WHERE, servers=servers)
    assert before == (tmp_path / CLIENTS_FILE).read_text()
    assert not (tmp_path / CONF).exists()


def test_a_later_run_with_another_address_names_the_files_that_have_the_old_one(
    tmp_path: Path,
) -> None:
    """The address is refused while files have the old one: they are never rewritten.

    An operator may have changed them by hand.
    """
    write(tmp_path, "f", NOW, **WHERE, servers=THREE)
    moved = cluster_servers(["n1", "n2=10.0.0.9", "n3"])
    with pytest.raises(NavarchError, match=r"nats-n1\.conf has no route nats-route://10\.0\.0\.9:"):
        write(tmp_path, "f", NOW, **WHERE, servers=moved)
    assert "10.0.0.9" not in (tmp_path / CLIENTS_FILE).read_text()
    for file in tmp_path.glob("nats-n*.conf"):
        file.write_text(file.read_text().replace("//n2:6222", "//10.0.0.9:6222"))
    names = {each.name for each in write(tmp_path, "f", NOW, **WHERE, servers=moved)}
    assert "n2.pem" in names


def test_certificates_of_routes_outlast_the_servers_and_a_lost_key_is_named(tmp_path: Path) -> None:
    """No client sees their end. A run renews them years ahead; a lost key has its own remedy."""
    where = {**WHERE, "hosts": ["nats.example.com"], "servers": THREE}
    write(tmp_path, "f", NOW, **where)
    year = {each.name for each in write(tmp_path, "f", NOW + timedelta(days=300), **where)}
    assert ("server.pem" in year, "n1.pem" in year) == (True, False)
    later = NOW + timedelta(days=7 * 365)
    assert {"n1.pem", "n2.pem", "n3.pem"} <= {
        each.name for each in write(tmp_path, "f", later, **where)
    }
    (tmp_path / "keys/routes-ca.key").unlink()
    with pytest.raises(NavarchError, match=r"routes-ca\.key is lost: .*remove the folder routes"):
        write(tmp_path, "f", later + timedelta(days=7 * 365), **where)


def test_a_file_of_an_earlier_release_gets_the_name_by_which_others_reach_it(
    tmp_path: Path,
) -> None:
    """Servers without `advertise` try each other's addresses for ever; an edited file stays."""
    write(tmp_path, "f", NOW, **WHERE, servers=THREE)
    files = {each.name: tmp_path / each.conf for each in THREE}
    made = files["n1"].read_text()
    assert '  advertise: "n1:6222"\n' in made
    for name, file in files.items():
        file.write_text(file.read_text().replace(f'  advertise: "{name}:6222"\n', ""))
    edited = files["n2"].read_text() + "# mine\n"
    files["n2"].write_text(edited)
    write(tmp_path, "f", NOW, **WHERE, servers=THREE)
    assert (made, edited) == (files["n1"].read_text(), files["n2"].read_text())
