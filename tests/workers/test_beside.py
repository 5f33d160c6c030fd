"""Parts that run beside a worker's main one: none is missing unnoticed."""

import asyncio

import pytest

from workers.beside import beside


async def forever() -> None:
    await asyncio.Event().wait()


async def failing() -> None:
    raise TypeError("a bug")


async def failing_when_it_is_stopped() -> None:
    try:
        await forever()
    finally:
        raise TypeError("at the end")


async def test_parts_run_until_the_block_ends_and_what_they_then_meet_is_nobodys_concern() -> None:
    ended = list[str]()

    async def part() -> None:
        try:
            await forever()
        finally:
            ended.append("part")

    async with beside([part(), failing_when_it_is_stopped()], on_failure=lambda: ended.append("failure")):
        await asyncio.sleep(0)
        assert not ended
    assert ended == ["part"]


async def test_a_part_that_fails_is_logged_ends_the_block_in_its_own_time_and_is_raised_after_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told, orderly = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with beside([forever(), failing()], on_failure=told.set):
            await told.wait()
            orderly.set()

    with pytest.raises(TypeError, match="a bug"):
        await work()
    assert orderly.is_set()
    [record] = (record for record in caplog.records if record.levelname == "CRITICAL")
    assert record.exc_info is not None
