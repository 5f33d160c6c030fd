"""Outcomes become rows in the order of time, each with the past that its request can have had."""

from pathlib import Path

import orjson

from broker import fleet, learning
from broker.connection import Pipe
from broker.learning import KEPT
from predictor.features import FEATURES, INDEX
from predictor.own_traffic import LAG, Seen, collect, rows, write_rows
from tests.predictor.tenants import outcomes

HABITS = (40.0, 400.0)


def seen(n: int, *, pool: str = "small") -> list[Seen]:
    return [Seen(pool, (at, 0), outcome) for at, outcome in enumerate(outcomes(n, habits=HABITS))]


def feature(row: bytes, name: str) -> float:
    return float(orjson.loads(row)["features"][INDEX[name]])


def test_a_row_knows_what_ended_before_and_not_what_came_of_itself() -> None:
    found = seen(60)
    made = rows(found)
    for at in (0, LAG, LAG + 1, 59):
        before = [each.outcome for each in found[: max(0, at - LAG)]]
        mine = [each.output_tokens for each in before if each.past_key == found[at].outcome.past_key][-KEPT:]
        assert feature(made[at], "pool_count") == min(len(before), KEPT)
        assert feature(made[at], "template_count") == len(mine)
        assert feature(made[at], "template_q50") == (
            sorted(mine)[round(0.5 * (len(mine) - 1))] if mine else -1
        )


def test_pools_have_pasts_of_their_own() -> None:
    made = rows([*seen(30), *seen(1, pool="large")])
    assert feature(made[-1], "pool_count") == 0


def test_a_row_is_what_training_reads(tmp_path: Path) -> None:
    from predictor.train.rows import read_rows

    write_rows(tmp_path / "rows.jsonl", seen(20))
    read = read_rows([tmp_path / "rows.jsonl"])
    assert read.x.shape == (20, len(FEATURES))
    assert [int(tokens) for tokens in read.output] == [each.outcome.output_tokens for each in seen(20)]


async def test_outcomes_of_all_pools_are_put_into_the_order_of_time(pipe: Pipe) -> None:
    made = list(outcomes(9, habits=HABITS))
    for at, outcome in enumerate(made):
        pool = ("small", "large")[at % 2]
        await fleet.announce_pool(pipe, pool)
        await pipe.run(learning.report(pool, [outcome]))
    found = await collect(pipe, most=8)
    assert [each.at for each in found] == sorted(each.at for each in found)
    for at, pool in enumerate(("small", "large")):
        mine = [each.outcome.output_tokens for each in found if each.pool == pool]
        assert mine == [each.output_tokens for each in made[at::2]][-len(mine) :]
    assert len(found) == 8
