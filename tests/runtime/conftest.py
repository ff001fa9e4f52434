"""The bus suite's fixtures, for what runs over a bus."""

from tests.bus.conftest import any_bus as any_bus
from tests.bus.conftest import durable as durable
from tests.bus.conftest import handler as handler
from tests.bus.conftest import looping as looping
from tests.bus.conftest import memory_bus as memory_bus
from tests.bus.conftest import memory_server as memory_server
