"""A launch reports what it was launched with, so that drift can be noticed."""

from importlib.metadata import entry_points

import msgspec

from schemas.launch_fingerprints import IMAGE_OPTIONS
from schemas.settings import PROVIDER_PLUGINS


def test_every_image_option_of_a_provider_counts() -> None:
    """Whatever the provider calls it; a new one must be added to those that are compared."""
    named = {
        field.name
        for each in entry_points(group=PROVIDER_PLUGINS)
        for field in msgspec.structs.fields(each.load().Options)
        if "image" in field.name
    }
    assert named == set(IMAGE_OPTIONS)
