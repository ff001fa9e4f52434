"""`navarch serve` runs a set number of processes of each service."""

from services.cli.supervisor import SERVICES, Supervisor


def kept(replicas: int) -> Supervisor:
    """A supervisor that has started nothing."""
    return Supervisor(
        server=None,
        url="nats://127.0.0.1:1",
        environment=lambda _: {},
        log=lambda _name, _line: None,
        on_change=lambda: None,
        replicas=replicas,
    )


def test_each_service_has_its_replicas() -> None:
    """The first replica has the service's name."""
    children = kept(2).children

    assert dict.fromkeys(SERVICES, 2) == {
        service: sum(each.service == service for each in children.values()) for service in SERVICES
    }
    assert {"notifier", "notifier-2"} == {n for n in children if n.startswith("notifier")}
    assert list(SERVICES) == list(kept(1).children)
