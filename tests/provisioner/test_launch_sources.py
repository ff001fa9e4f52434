"""A launch reports what it was launched with, so that drift can be noticed."""

from importlib.metadata import entry_points
from pathlib import Path

import msgspec

from schemas.launch_fingerprints import IMAGE_OPTIONS, image_digest
from schemas.launch_offers import Choice, Offer
from schemas.saga_params import LaunchSpec
from schemas.settings import PROVIDER_PLUGINS, AgentSettings, NatsSettings, PluginSettings
from services.bus.nats.nats_bus import NatsBus
from services.provisioner.bootstrap.user_data import BootstrapTemplates
from services.settings.setup_validation import user_data_digest
from tests.provisioner.provisioner_parts import fake, providers, provision, step_handlers


def test_every_image_option_of_a_provider_counts() -> None:
    """Each image option of a provider counts, whatever its name; a new one must be added."""
    named = {
        field.name
        for each in entry_points(group=PROVIDER_PLUGINS)
        for field in msgspec.structs.fields(each.load().Options)
        if "image" in field.name
    }
    assert named == set(IMAGE_OPTIONS)


async def test_a_launch_reports_its_image_and_its_user_data(bus: NatsBus, tmp_path: Path) -> None:
    """A launch reports digests of image and user data, by this service's own configuration."""
    (tmp_path / "init.sh").write_text("#!/bin/sh\n", encoding="utf-8")
    named = frozenset({"init.sh"})
    templates = BootstrapTemplates(NatsSettings(), AgentSettings(), tmp_path, named)
    configured = {"fake": PluginSettings(type="fake", options={"image": "one"})}
    cloud = fake()
    steps = step_handlers(bus, providers(cloud), templates=templates, configured=configured)
    made = await steps.provision(provision("web-1", user_data="init.sh"))
    assert made.sources == {
        "user data": user_data_digest("init.sh", tmp_path),
        "image at fake": image_digest(configured["fake"]),
    }
    await cloud.close()


async def test_an_image_that_a_pool_sets_for_itself_counts(bus: NatsBus) -> None:
    """A pool's own image is the one that its nodes have, whatever the provider's options name."""
    configured = {"fake": PluginSettings(type="fake", options={"image": "one"})}
    cloud = fake()
    steps = step_handlers(bus, providers(cloud), configured=configured)
    of_pool = Offer(provider="fake", instance_type="t", options={"image": "two"})
    launch = LaunchSpec(
        fleet="f", provider="fake", instance_type="t", choice=Choice(offers=(of_pool,))
    )
    two = PluginSettings(type="fake", options={"image": "two"})
    assert steps._sources("fake", launch)["image at fake"] == image_digest(two)
    await cloud.close()
