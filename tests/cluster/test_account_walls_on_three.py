"""The attacks on accounts, where attacker, victim and stream are at three different servers."""

import itertools
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from tests.cluster.test_secured_cluster import SecuredCluster
from tests.cluster.test_secured_cluster import cluster as cluster
from tests.redteam import test_account_walls as walls
from tests.support.secured import Secured

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


class Spread(Secured):
    """The cluster, of which each connection reaches another server than the one before."""

    def __init__(self, cluster: SecuredCluster) -> None:
        self._urls = itertools.cycle([each.url for each in cluster.servers])
        super().__init__(cluster.servers[0], cluster.directory)

    @property
    def url(self) -> str:
        """Return the URL of the next server."""
        return next(self._urls)


@pytest.mark.parametrize(
    "attack",
    [
        walls.test_an_answer_cannot_be_sent_to_a_subject_of_another_account,
        walls.test_a_request_to_itself_permits_an_agent_no_reply_elsewhere,
        walls.test_no_user_hears_or_answers_for_another,
        walls.test_a_services_credentials_reach_its_own_durables_and_keys_alone,
        walls.test_a_viewer_may_give_no_orders,
        walls.test_a_guessed_message_id_suppresses_nothing,
        *(
            partial(walls.test_outsiders_change_nothing_that_is_stored, who=who)
            for who in walls.OUTSIDERS
        ),
    ],
)
async def test_the_accounts_hold_between_servers(
    cluster: SecuredCluster, attack: Callable[[Secured], Awaitable[None]]
) -> None:
    """A request that one server refuses is refused by the others; nothing slips through a route."""
    await attack(Spread(cluster))
