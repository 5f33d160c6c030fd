"""Beside the requests: models are exchanged, pasts and timing learned, by several processes, and no forecast waits."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker import learning
from broker.connection import Pipe
from broker.keys import PoolKeys
from broker.learning import Outcome
from broker.settings import Settings
from predictor.features import VERSION, extract
from predictor.foresight import Foresight, learned_estimator
from predictor.habits import past_key
from predictor.history import template_key
from predictor.model_store import ModelStore
from tests.api.harness import CONFIG, ScriptedWorker, Served, chat, serve, whole_answer
from tests.conditions import wait_until
from tests.predictor.small_models import folder_of

POOL = "small"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "home")


def foresight(pipe: Pipe, store: ModelStore, *, name: str = "one") -> Foresight:
    return Foresight(pipe, learned_estimator(CONFIG), store, name)


def promoted(store: ModelStore, tmp_path: Path, *, tokens: float, version: str) -> Path:
    store.promote(store.add(folder_of(tmp_path / f"candidate-{version}", tokens=tokens, version=version)))
    return store.folder(version)


def outcome(*, run_s: float = 5.0, output: int = 100) -> Outcome:
    features = extract(CHAT)
    key = past_key("default", template_key(CHAT))
    return Outcome(
        key,
        features.values,
        VERSION,
        "fact",
        10,
        0,
        output,
        run_s,
        1.0,
        first_s=0.1,
        forecast_tokens=50,
        ended="stop",
    )


async def report(pipe: Pipe, *outcomes: Outcome) -> None:
    await pipe.run(learning.report(POOL, outcomes))


async def test_models_that_are_promoted_serve_at_the_next_look(
    pipe: Pipe, store: ModelStore, tmp_path: Path
) -> None:
    mine = foresight(pipe, store)
    await mine.look()
    assert mine.estimator.models is not None
    shipped = mine.estimator.models.version
    promoted(store, tmp_path, tokens=700.0, version="new")
    assert mine.estimator.models.version == shipped
    await mine.look()
    assert mine.estimator.forecast(POOL, CHAT).output_tokens == pytest.approx(700, rel=0.15)
    store.rollback()
    await mine.look()
    assert mine.estimator.models.version == shipped
    assert mine.generation == 3


async def test_without_a_change_nothing_is_loaded_again(pipe: Pipe, store: ModelStore) -> None:
    mine = foresight(pipe, store)
    for _ in range(3):
        await mine.look()
    assert mine.generation == 1


async def test_a_corrupt_file_leaves_the_models_that_serve_and_a_line_in_the_log(
    pipe: Pipe, store: ModelStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = foresight(pipe, store)
    promoted(store, tmp_path, tokens=700.0, version="good")
    await mine.look()
    (promoted(store, tmp_path, tokens=50.0, version="bad") / "p90.txt").write_bytes(b"tree\nversion=v4\n")
    await mine.look()
    assert mine.estimator.models is not None
    assert mine.estimator.models.version == "good"
    assert "p90.txt" in caplog.text
    assert mine.estimator.forecast(POOL, CHAT).output_tokens == pytest.approx(700, rel=0.15)


async def test_with_a_corrupt_file_from_the_start_the_simple_forecasts_serve(
    pipe: Pipe, store: ModelStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (promoted(store, tmp_path, tokens=50.0, version="bad") / "p50.txt").write_bytes(b"")
    mine = foresight(pipe, store)
    await mine.look()
    assert mine.estimator.models is None
    assert "p50.txt" in caplog.text
    assert mine.estimator.forecast(POOL, CHAT) == mine.estimator.simple.forecast(POOL, CHAT)


async def test_pasts_are_fetched_for_templates_that_were_asked_about(pipe: Pipe, store: ModelStore) -> None:
    await report(pipe, outcome(output=40), outcome(output=60))
    mine = foresight(pipe, store)
    await mine.look()
    mine.estimator.forecast(POOL, CHAT)
    await mine.look()
    found = mine.estimator.foresee(POOL, CHAT)
    assert found is not None
    assert found.features["template_count"] == 2
    assert found.features["pool_count"] == 2


async def test_timing_is_learned_by_one_process_and_known_to_all(pipe: Pipe, store: ModelStore) -> None:
    await report(pipe, *(outcome() for _ in range(150)))
    one, two = foresight(pipe, store), foresight(pipe, store, name="two")
    for each in (one, two):
        await each.look()
        each.estimator.forecast(POOL, CHAT)
        await each.look()
    assert one.estimator.timings[POOL] == two.estimator.timings[POOL]
    assert one.estimator.timings[POOL].samples == 150
    assert one.estimator.timings[POOL].run_s(10, 100) == pytest.approx(5.0, rel=0.1)


async def test_another_teacher_goes_on_where_the_first_has_stopped(pipe: Pipe, store: ModelStore) -> None:
    one, two = foresight(pipe, store), foresight(pipe, store, name="two")
    for number, each in enumerate((one, two), 1):
        await report(pipe, *(outcome() for _ in range(20)))
        await each.look()
        each.estimator.forecast(POOL, CHAT)
        await each.look()
        await pipe.command("DEL", PoolKeys(POOL).named("teacher"))
        assert each.estimator.timings[POOL].samples == 20 * number


async def test_a_process_that_is_asked_nothing_asks_nobody(store: ModelStore, redis_url: str) -> None:
    pipe = Pipe(redis_url)
    await pipe.close()
    await foresight(pipe, store).look()  # would raise RedisAway


async def test_metrics_tell_how_far_forecasts_are_off(served: Served, pipe: Pipe, store: ModelStore) -> None:
    await report(pipe, *(outcome(run_s=2.0, output=100) for _ in range(5)))
    teacher = foresight(pipe, store)
    await teacher.look()
    teacher.estimator.forecast(POOL, CHAT)
    await teacher.look()
    text = (await served.http.get("/metrics")).text
    assert 'headway_forecast_error_ratio{of="run_s",pool="small"} 2.0' in text
    assert 'headway_forecast_error_ratio{of="output_tokens",pool="small"} 2.0' in text
    assert 'headway_forecast_outcomes_total{pool="small"} 5.0' in text


async def test_an_outcome_of_another_version_of_the_features_teaches_timing_only(
    pipe: Pipe, store: ModelStore
) -> None:
    await report(pipe, replace(outcome(), features=(1.0,), features_version=VERSION + 1))
    mine = foresight(pipe, store)
    await mine.look()
    mine.estimator.forecast(POOL, CHAT)
    await mine.look()
    assert mine.estimator.timings[POOL].samples == 1


async def test_a_reload_under_load_drops_no_request(
    redis_url: str, tmp_path: Path, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are answered all the time while models are promoted and rolled back; later ones see the new models."""
    monkeypatch.setattr("predictor.foresight.LOOK_S", 0.01)
    settings = Settings(redis_url=redis_url, home=tmp_path / "home", max_queued=1000)
    store, answers = ModelStore(settings.home), list[int]()
    promoted(store, tmp_path, tokens=30.0, version="a0")

    async def answer_all() -> None:
        while True:
            await worker.finish(await worker.claim(), whole_answer("ok"))

    async def ask(served: Served) -> None:
        while len(answers) < 150:
            response = await served.http.post("/v1/chat/completions", json=chat())
            assert response.status_code == 200, response.text
            answers.append(int(response.headers["x-headway-predicted-ms"]))

    async with serve(settings) as served:
        answering = asyncio.create_task(answer_all())
        asking = [asyncio.create_task(ask(served)) for _ in range(4)]
        for number in range(1, 9):
            await wait_until(lambda: len(answers) >= 15 * number, what="requests are answered")  # noqa: B023
            promoted(store, tmp_path, tokens=30.0 if number % 2 == 0 else 3000.0, version=f"a{number}")
        await asyncio.gather(*asking)
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
    assert len(answers) >= 150
    assert max(answers) > 20 * min(answers)
