"""The number of processes of each service under `navarch serve`."""

from services.cli.supervisor import HTTP_PORT_VARIABLE, SERVICES, Supervisor


def kept(replicas: int) -> Supervisor:
    """A supervisor that has started nothing."""
    return Supervisor(
        server=None,
        url="nats://127.0.0.1:1",
        environment=lambda _: {},
        http_port=9090,
        log=lambda _name, _line: None,
        on_change=lambda: None,
        replicas=replicas,
    )


def test_each_service_has_its_replicas_and_one_process_has_the_port() -> None:
    """The first replica has the service's name; one metrics process has the fixed port."""
    children = kept(2).children
    fixed = [name for name, each in children.items() if each.environment[HTTP_PORT_VARIABLE] != "0"]

    assert dict.fromkeys(SERVICES, 2) == {
        service: sum(each.service == service for each in children.values()) for service in SERVICES
    }
    assert {"notifier", "notifier-2"} == {n for n in children if n.startswith("notifier")}
    assert ["metrics"] == fixed
    assert list(SERVICES) == list(kept(1).children)
