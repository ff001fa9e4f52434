"""Tests show what every MetricsSource must keep; the author of a plugin runs them with pytest.

A class of tests in a package of yours inherits from the one here, and makes the source with a
system that answers and with one that does not:

    import pytest
    from navarch.services.pool_manager.autoscaling import metrics_source_conformance

    class TestLsfSource(metrics_source_conformance.SourceConformance):
        @pytest.fixture
        def answered(self, lsf):
            return LsfSource(options=LsfSource.Options(url=lsf.url))

        @pytest.fixture
        def unanswered(self):
            return LsfSource(options=LsfSource.Options(url="http://127.0.0.1:1"))

It needs pytest (`navarch[conformance]`), and asyncio tests of pytest-asyncio.
"""

import asyncio
from typing import Final

import msgspec
import pytest

from schemas.settings import Setting
from services.pool_manager.autoscaling.metrics_sources import Load, MetricsSource, SourceError

POOL: Final = "training"
ANSWER_SECONDS_MAX: Final = 15.0


class SourceConformance:
    """Inherit, name the class `Test…`, and write the fixtures `answered` and `unanswered`."""

    @pytest.fixture
    def answered(self) -> MetricsSource:
        """A source whose system answers."""
        raise NotImplementedError("write the fixture `answered`: see the module's first lines")

    @pytest.fixture
    def unanswered(self) -> MetricsSource:
        """A source whose system is away."""
        raise NotImplementedError("write the fixture `unanswered`: see the module's first lines")

    def test_its_options_are_a_struct(self, answered: MetricsSource) -> None:
        """Options are a strict struct, so that a configuration error names file, line and key."""
        options = getattr(type(answered), "Options", None)
        assert options is not None, "it has no inner struct `Options`"
        assert issubclass(options, Setting), "Options is no schemas.settings.Setting"
        assert options.__struct_config__.forbid_unknown_fields, "Options takes unknown keys"

    async def test_it_answers_a_load(self, answered: MetricsSource) -> None:
        """A load has figures within their bounds, one of them at least, and twice the same type."""
        try:
            for _ in range(2):
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    found = await answered.load(POOL)
                assert isinstance(found, Load), f"{found!r} is no Load"
                msgspec.convert(msgspec.to_builtins(found), Load)
                assert found != Load(), "it knows nothing; raise SourceError instead"
        finally:
            await answered.close()

    async def test_questions_at_once_are_answered(self, answered: MetricsSource) -> None:
        """Several pools may share a source's system."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                found = await asyncio.gather(*(answered.load(POOL) for _ in range(4)))
            assert all(isinstance(each, Load) for each in found)
        finally:
            await answered.close()

    async def test_a_system_that_is_away_is_no_load(self, unanswered: MetricsSource) -> None:
        """SourceError with a reason, in time: then the pool keeps its size."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                with pytest.raises(SourceError) as raised:
                    await unanswered.load(POOL)
            assert str(raised.value).strip(), "its SourceError has no text"
        finally:
            await unanswered.close()

    async def test_a_cancelled_question_leaves_it_usable(self, answered: MetricsSource) -> None:
        """The caller's own limit cancels a question; the next one is answered."""
        try:
            question = asyncio.ensure_future(answered.load(POOL))
            await asyncio.sleep(0)
            question.cancel()
            await asyncio.gather(question, return_exceptions=True)
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                assert isinstance(await answered.load(POOL), Load)
        finally:
            await answered.close()

    async def test_closing_twice_is_once(self, unanswered: MetricsSource) -> None:
        """Closing a second time changes nothing, also where no question was asked before."""
        await unanswered.close()
        await unanswered.close()
