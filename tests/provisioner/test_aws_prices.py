"""Prices of AWS: on demand from the price list, as the SDK's model has it, and spot from moto."""

from collections.abc import Callable

import pytest

from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers import aws_prices
from services.provisioner.providers.aws import AwsProvider

Make = Callable[..., AwsProvider]
TYPE = "p5.48xlarge"


async def on_demand(provider: AwsProvider, *types: str) -> dict[str, float | None]:
    """Return the on-demand prices in dollars by region and type."""
    return {
        f"{each.region} {each.instance_type}": each.dollars_per_hour
        for each in await provider.prices(types)
        if each.market == "on-demand"
    }


@pytest.mark.parametrize(
    ("region", "types", "expected"),
    [
        ("us-east-1", (TYPE, "none-such"), {"us-east-1 p5.48xlarge": 55.04}),
        ("eu-west-1", (TYPE,), {"eu-west-1 p5.48xlarge": 61.5}),
        ("cn-north-1", (TYPE,), {}),
    ],
)
async def test_on_demand_prices_are_those_of_the_price_list(
    make_aws: Make, region: str, types: tuple[str, ...], expected: dict[str, float]
) -> None:
    """Prices are by the hour, in the provider's region; a type that the list lacks has none."""
    assert expected == await on_demand(make_aws(region=region), *types)


async def test_a_price_is_asked_for_once_in_hours(
    make_aws: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spot prices each time."""
    provider = make_aws()
    asked: list[str] = []
    plain = provider._clients.call

    async def call(service: str, what: str, **given: object) -> object:
        asked.append(what)
        return await plain(service, what, **given)

    monkeypatch.setattr(provider._clients, "call", call)
    for _ in range(2):
        assert {"us-east-1 p5.48xlarge": 55.04} == await on_demand(provider, TYPE)
    assert (1, 2) == (asked.count("get_products"), asked.count("describe_spot_price_history"))
    monkeypatch.setattr(aws_prices, "ON_DEMAND_SECONDS", 0.0)
    await provider.prices((TYPE,))
    assert 2 == asked.count("get_products")


async def test_without_the_right_to_the_list_spot_prices_remain(
    make_aws: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """The missing right is logged once, and spot prices remain.

    Without types nothing is requested.
    """
    provider = make_aws()
    for _ in range(2):
        found = await provider.prices(("denied.large", TYPE))
        assert {"spot"} >= {each.market for each in found}
    assert ["no on-demand prices"] == [each.message for each in caplog.records]
    assert () == await provider.prices(())


async def test_another_refusal_of_the_list_is_an_error(
    make_aws: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last prices stay then, with their age."""
    monkeypatch.setitem(aws_prices.MEANT, "tenancy", "Host")
    with pytest.raises(ProviderError, match="ambiguous"):
        await make_aws().prices((TYPE,))


@pytest.mark.parametrize("dimension", ["{}", '{"unit": "Hrs", "pricePerUnit": {"USD": "N/A"}}'])
def test_a_product_without_an_hourly_price_has_none(dimension: str) -> None:
    """A product without an hourly price has none, which is no error."""
    terms = f'{{"OnDemand": {{"a": {{"priceDimensions": {{"b": {dimension}}}}}}}}}'
    assert aws_prices.hourly_price([]) is None
    assert aws_prices.hourly_price(["{}", f'{{"terms": {terms}}}']) is None
