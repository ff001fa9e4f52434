"""The package in which a wheel has `agent`, `schemas` and `services`; in a checkout, an alias.

`navarch.services.x` is the very module `services.x`, so that a plugin and `python -m` that are
written for an installed Navarch work in a checkout, too. A wheel has an empty module here.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Final

ROOTS: Final = ("agent", "schemas", "services")


class CheckoutModules(MetaPathFinder, InspectLoader):
    """Finds `navarch.NAME` as NAME."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of these packages."""
        del path, target
        name = fullname.removeprefix(f"{__name__}.")
        if name == fullname or name.partition(".")[0] not in ROOTS:
            return None
        found = importlib.util.find_spec(name)
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(fullname, self, origin=found.origin, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Load the module by its own name."""
        made = importlib.import_module(spec.name.removeprefix(f"{__name__}."))
        self._spec = made.__spec__
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Leave it as it is: it was executed."""
        module.__spec__ = self._spec

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of a module, for `python -m`."""
        found = importlib.util.find_spec(fullname.removeprefix(f"{__name__}."))
        assert found is not None
        assert isinstance(found.loader, InspectLoader)
        return found.loader.get_code(found.name)

    def get_source(self, fullname: str) -> str | None:
        """Return the source of a module, for tracebacks."""
        found = importlib.util.find_spec(fullname.removeprefix(f"{__name__}."))
        assert found is not None
        assert isinstance(found.loader, InspectLoader)
        return found.loader.get_source(found.name)

    def is_package(self, fullname: str) -> bool:
        """Return whether the name has modules of its own."""
        found = importlib.util.find_spec(fullname.removeprefix(f"{__name__}."))
        return found is not None and found.submodule_search_locations is not None


sys.meta_path.insert(0, CheckoutModules())
