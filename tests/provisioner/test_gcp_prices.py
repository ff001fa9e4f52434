"""Prices and quotas of Google, held to its discovery documents: a server refuses the rest."""

from collections.abc import Callable

import pytest

from schemas.launch_offers import Market, Offering
from schemas.offering_records import OfferingQuota
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers import gcp_prices, gcp_skus
from services.provisioner.providers.gcp import GcpProvider
from services.provisioner.providers.provider_http import convert
from tests.provisioner import gcp_price_list, google_logins
from tests.provisioner.gcp_price_list import SKUS, sku
from tests.provisioner.gcp_server import API, GcpServer, check_value

Make = Callable[..., GcpProvider]
A2, A3, MEGA, A4 = "a2-highgpu-8g", "a3-highgpu-8g", "a3-megagpu-8g", "a4-highgpu-8g"
HOURLY = {
    ("us-central1", A2, "on-demand"): 96 * 0.031611 + 680 * 0.004237 + 8 * 2.933908,
    ("us-central1", A2, "spot"): 96 * 0.01265 + 680 * 0.0017 + 8 * 1.76,
    ("us-central1", A3, "on-demand"): 208 * 0.0293 + 1872 * 0.00255 + 8 * 9.79655,
    ("us-central1", MEGA, "on-demand"): 208 * 0.026924 + 1872 * 0.002344 + 8 * 10.344276,
    ("us-central1", A4, "on-demand"): 8 * 16.11,
    ("us-central1", A4, "spot"): 8 * 4.9542,
}
"""Parts without a GPU's price, as A3 in Europe, make no machine; A4 has no parts but its GPUs."""


# --- prices --------------------------------------------------------------------------------------


async def test_a_machine_costs_what_its_parts_cost(make_gcp: Make) -> None:
    """A machine's price is by region and market, with the dearest of several SKUs for a part.

    Other SKUs do not count.
    """
    found = await make_gcp().prices((A2, A3, MEGA, A4, "n1-standard-8", "none-such"))
    priced = {(each.region, each.instance_type, each.market): each for each in found}
    assert HOURLY.keys() == priced.keys()
    for key, dollars in HOURLY.items():
        assert priced[key].dollars_per_hour == pytest.approx(dollars, abs=1e-5)
        assert "" == priced[key].zone


def test_the_entries_are_such_as_the_document_knows() -> None:
    """Google's document knows the entries that the tests are made of."""
    for each in SKUS:
        check_value(gcp_price_list.API, each, {"$ref": "Sku"}, "sku")
    assert "machineTypes.aggregatedList" in API["methods"]


async def test_list_and_machines_are_read_once_in_hours(
    gcp: GcpServer, make_gcp: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pages of both; a type that is new is asked for alone."""
    provider = make_gcp()
    pages = -(-len(SKUS) // gcp_price_list.PAGE_MAX)
    for types in ((A2,), (A2,), (A2, A3)):
        assert await provider.prices(types)
    assert pages == len(gcp.price_list.asked)
    assert 2 * 3 == gcp.calls.count("machineTypes.aggregatedList")
    monkeypatch.setattr(gcp_prices, "KEPT_SECONDS", 0.0)
    await provider.prices((A2,))
    assert 2 * pages == len(gcp.price_list.asked)
    assert {gcp_prices.SKU_FIELDS} == {each["fields"] for each in gcp.price_list.asked}


async def test_without_types_or_without_an_address_nothing_is_asked(
    gcp: GcpServer, make_gcp: Make
) -> None:
    """Neither prices nor a token are asked for without types or with the list switched off."""
    assert () == await make_gcp().prices(())
    switched_off = make_gcp(prices_url="")
    assert (False, ()) == (switched_off.capabilities.prices, await switched_off.prices((A2,)))
    assert ([], []) == (gcp.price_list.asked, gcp.logins.issued)


@pytest.mark.parametrize("lacking", ["the API", "the scope", "machine types"])
async def test_without_the_right_the_catalogue_applies(
    gcp: GcpServer, make_gcp: Make, caplog: pytest.LogCaptureFixture, lacking: str
) -> None:
    """The missing right is logged once, and launches do not depend on it."""
    gcp.price_list.disabled = lacking == "the API"
    gcp.logins.refused_scope = google_logins.PRICES_SCOPE if lacking == "the scope" else ""
    provider = make_gcp()
    for _ in range(2):
        if lacking == "machine types":
            gcp.refuse("machineTypes.aggregatedList", 403, "forbidden")
        assert () == await provider.prices((A2,))
    [logged] = [each for each in caplog.records if each.message == "no prices of Google"]
    wanted = "compute.machineTypes.list" if lacking == "machine types" else "Cloud Billing API"
    assert wanted in logged.__dict__["remedy"]
    assert [] == await provider.list()


async def test_any_other_failure_of_the_list_is_an_error(
    gcp: GcpServer, make_gcp: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last prices stay then, with their age."""
    gcp.refuse("machineTypes.aggregatedList", 503, "backendError")
    with pytest.raises(ProviderError, match="TRANSIENT"):
        await make_gcp().prices((A2,))
    monkeypatch.setattr(gcp_prices, "SKU_PAGES_MAX", 1)
    with pytest.raises(ProviderError, match="more than 1 pages"):
        await make_gcp().prices((A2,))
    gcp.price_list.skus = [{"description": 1}]
    with pytest.raises(ProviderError, match="unreadable answer"):
        await make_gcp().prices((A2,))


@pytest.mark.parametrize("amount", [{"units": "x"}, {"units": "3", "currencyCode": "EUR"}])
def test_a_price_that_is_no_dollars_is_none(amount: dict[str, str]) -> None:
    """The part has none, then, and so has the machine."""
    entry = sku("Nvidia L4 GPU running in Americas", 0.5)
    rate = entry["pricingInfo"][0]["pricingExpression"]["tieredRates"][0]
    rate["unitPrice"] = amount
    rates: gcp_skus.Rates = {}
    gcp_skus.add_rates(rates, [convert(entry, gcp_skus.Sku)])
    assert {} == rates


# --- quotas --------------------------------------------------------------------------------------


def place(name: str, market: Market = "on-demand", zone: str = "us-central1-a") -> Offering:
    """An offering, as a pool with zones names it."""
    return Offering(provider="gcp", zone=zone, instance_type=name, market=market)


def quota(metric: str, used: float, limit: float) -> dict[str, object]:
    """Return one quota of an answer."""
    return {"metric": metric, "usage": used, "limit": limit}


A100 = "NVIDIA_A100_GPUS"


async def test_a_quota_is_that_of_its_region_model_and_market(
    gcp: GcpServer, make_gcp: Make
) -> None:
    """A model that has none in the answer, and a region that cannot say, have none."""
    gcp.quotas = {
        "us-central1": [
            quota(A100, 8, 24),
            quota("PREEMPTIBLE_NVIDIA_A100_GPUS", 3, 4),
            quota("PREEMPTIBLE_NVIDIA_H100_GPUS", 8, 8),
        ],
        "": [quota("GPUS_ALL_REGIONS", 8, 64)],
    }
    asked = (
        *(place(A2), place(A2, "spot"), place(A3), place(A3, "spot"), place(A2, "reserved")),
        *(place(A3, "spot", "europe-west4-b"), place("n1-standard-8")),
    )
    found = await make_gcp().quotas(asked)
    assert [
        ("on-demand", "NVIDIA_A100_GPUS in us-central1", 8, 24, 8),
        ("spot", "PREEMPTIBLE_NVIDIA_A100_GPUS in us-central1", 3, 4, 8),
        ("spot", "PREEMPTIBLE_NVIDIA_H100_GPUS in us-central1", 8, 8, 8),
    ] == [(each.market, each.quota, each.used, each.limit, each.takes) for each in found]
    assert {"us-central1"} == {each.region for each in found}


CASES = {
    "all regions together have less room": (
        {"us-central1": [quota(A100, 0, 16)], "": [quota("GPUS_ALL_REGIONS", 8, 8)]},
        *({}, "on-demand", "GPUS_ALL_REGIONS in project my-project"),
    ),
    "spot machines without a quota of their own take the standard one": (
        {"us-central1": [quota(A100, 8, 8), quota("PREEMPTIBLE_NVIDIA_A100_GPUS", 0, 0)]},
        *({}, "spot", "NVIDIA_A100_GPUS in us-central1"),
    ),
    "flex-start takes that of spot machines": (
        {"us-central1": [quota(A100, 0, 8), quota("PREEMPTIBLE_NVIDIA_A100_GPUS", 8, 8)]},
        {"provisioning": "flex-start", "max_run": 3600},
        *("on-demand", "PREEMPTIBLE_NVIDIA_A100_GPUS in us-central1"),
    ),
}


@pytest.mark.parametrize(("known", "options", "market", "expected"), CASES.values(), ids=CASES)
async def test_the_quota_with_the_least_room_counts(
    gcp: GcpServer,
    make_gcp: Make,
    known: dict[str, list[dict[str, object]]],
    options: dict[str, object],
    market: Market,
    expected: str,
) -> None:
    """The quota with the least room counts, of those that a launch takes."""
    gcp.quotas = known
    [found] = await make_gcp(**options).quotas([place(A2, market)])
    assert expected == found.quota


async def test_without_the_right_no_quota_is_known(
    gcp: GcpServer, make_gcp: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """The missing right is logged once; another failure is an error.

    Without offerings nothing is asked.
    """
    provider = make_gcp()
    assert () == await provider.quotas(())
    for _ in range(2):
        gcp.refuse("regions.get", 403, "forbidden")
        assert () == await provider.quotas([place(A2)])
    assert ["no quotas"] == [each.message for each in caplog.records]
    gcp.refuse("projects.get", 503, "backendError")
    with pytest.raises(ProviderError, match="TRANSIENT"):
        await provider.quotas([place(A2)])
    assert OfferingQuota(instance_type=A2, quota="x", limit=1, used=0).takes == 1
