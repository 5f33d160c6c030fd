"""`headway batch` against the real API and the real Celery worker."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from io import BytesIO
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner, Result

from api.cli import batch_submit
from api.cli.batch_input import Wishes, convert
from api.cli.main import app
from broker.settings import Settings
from tests.api.harness import Served, serve
from tests.workers.batch.rig import CeleryProcess, Engine, request_line, request_lines, running

PLAIN = b'{"prompt":"one"}\n\n{"messages":[{"role":"user","content":"two"}],"max_tokens":5}\n{"prompt":"three","custom_id":"c"}\n'


@pytest.fixture
def settings(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path))
    return Settings(redis_url=redis_url, home=tmp_path, slice_lines=10, batch_window=4, celery_concurrency=2)


@pytest.fixture
async def served(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    async with serve(settings) as made:
        monkeypatch.setenv("HEADWAY_URL", made.url)
        yield made


@pytest.fixture
def celery(settings: Settings, tmp_path: Path) -> Iterator[CeleryProcess]:
    process = CeleryProcess.start(settings, tmp_path / "celery.log")
    yield process
    process.kill()


@pytest.fixture
async def engine(redis_url: str) -> AsyncIterator[Engine]:
    async with running(Engine(redis_url)) as made:
        yield made


async def run(*words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, ["batch", *words], catch_exceptions=False)


def converted(content: bytes, *, endpoint: str = "") -> tuple[str, list[dict[str, object]]]:
    target = BytesIO()
    found = convert(content.splitlines(keepends=True), target, wishes=Wishes(lambda: "m", endpoint))
    return found.endpoint, [orjson.loads(line) for line in target.getvalue().splitlines()]


async def test_submit_and_wait_then_results_status_and_list(
    served: Served, celery: CeleryProcess, engine: Engine, tmp_path: Path
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(PLAIN)
    done = await run("submit", str(source), "--wait", "--out", str(out))
    assert done.exit_code == 0, done.output
    batch_id = done.stdout.strip()
    lines = [orjson.loads(line) for line in out.read_bytes().splitlines()]
    assert [(line["custom_id"], line["response"]["body"]["echo"]) for line in lines] == [
        ("line-1", "one"),
        ("line-3", "two"),
        ("c", "three"),
    ]
    assert "completed: 3 of 3 answered, 0 failed" in done.stderr
    assert (await run("results", batch_id)).stdout_bytes == out.read_bytes()
    assert orjson.loads((await run("status", batch_id)).stdout)["status"] == "completed"
    assert batch_id in (await run("list")).stdout
    assert "has no failed lines" in (await run("results", batch_id, "--errors")).stderr


async def test_lines_that_fail_are_counted_kept_beside_the_answers_and_told_by_the_exit_code(
    served: Served, celery: CeleryProcess, engine: Engine, tmp_path: Path
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b'{"prompt":"one"}\n\n{"promt":"two"}\n')
    done = await run("submit", str(source), "--out", str(out), "--param", "temperature=0")
    assert done.exit_code == 1
    assert "in line 3" in done.stderr
    errors = tmp_path / "out.errors.jsonl"
    assert f"1 of 2 failed; errors in {errors}" in done.stderr
    assert orjson.loads(out.read_bytes())["custom_id"] == "line-1"
    (error,) = [orjson.loads(line) for line in errors.read_bytes().splitlines()]
    assert error["custom_id"] == "line-3"
    assert error["error"]["message"].startswith("line 3: messages is required")


async def test_the_same_submit_again_goes_on_where_it_was(
    served: Served, celery: CeleryProcess, engine: Engine, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(request_lines(5))
    first = await run("submit", str(source))
    second = await run("submit", str(source), "--wait")
    assert second.exit_code == 0, second.output
    assert second.stdout == first.stdout
    assert set(engine.asked.values()) == {1}
    fresh = await run("submit", str(source), "--again", "--wait")
    assert fresh.stdout != first.stdout
    other = await run("submit", str(source), "--class", "P3", "--wait")
    assert other.stdout not in (first.stdout, fresh.stdout)


async def test_a_submit_that_died_after_the_upload_makes_one_batch(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(request_lines(1))
    write, writes = batch_submit.Notes.write, 0

    def dying(self: batch_submit.Notes, steps: batch_submit.Steps) -> None:
        nonlocal writes
        writes += 1
        if writes == 3:  # the batch is there, and not written down
            raise KeyboardInterrupt
        write(self, steps)

    monkeypatch.setattr(batch_submit.Notes, "write", dying)
    broken = await run("submit", str(source))
    assert broken.exit_code == 130
    assert "The same command resumes" in broken.stderr
    monkeypatch.undo()
    monkeypatch.setenv("HEADWAY_URL", served.url)
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path))
    assert (await run("submit", str(source))).exit_code == 0
    assert len((await served.http.get("/v1/batches")).json()["data"]) == 1
    assert len((await served.http.get("/v1/files")).json()["data"]) == 1


async def test_submit_waits_for_an_api_that_is_restarted(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(request_lines(1))
    (tmp_path / "up.json").write_text('{"api": {"url": "http://127.0.0.1:1"}}')
    monkeypatch.delenv("HEADWAY_URL", raising=False)
    submitting = asyncio.create_task(run("submit", str(source)))
    async with serve(settings) as made:
        (tmp_path / "up.json").write_bytes(orjson.dumps({"api": {"url": made.url}}))
        done = await submitting
    assert done.exit_code == 0, done.output


async def test_cancel_ends_it_and_wait_says_so_with_exit_code_1(
    served: Served, celery: CeleryProcess, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(request_lines(5))
    batch_id = (await run("submit", str(source))).stdout.strip()
    assert orjson.loads((await run("cancel", batch_id)).stdout)["status"] == "cancelling"
    done = await run("submit", str(source), "--wait")
    assert done.exit_code == 1
    assert "cancelled: 0 of" in done.stderr


async def test_an_empty_file_fails_with_the_reason(
    served: Served, celery: CeleryProcess, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"")
    done = await run("submit", str(source), "--wait")
    assert done.exit_code == 1
    assert "the input file has no lines (empty_file)" in done.stderr


async def test_a_refusal_is_told_at_once(served: Served, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(request_lines(1))
    with pytest.raises(Exception, match="P2 or P3"):
        await run("submit", str(source), "--class", "P0")


def test_openai_lines_pass_unchanged_and_name_the_endpoint() -> None:
    line = request_line("a", url="/v1/completions")
    assert converted(line) == ("/v1/completions", [orjson.loads(line)])


def test_plain_lines_become_what_the_endpoint_takes() -> None:
    _, (chat,) = converted(b'{"prompt":"p","temperature":0}')
    body = {"model": "m", "messages": [{"role": "user", "content": "p"}], "temperature": 0}
    assert chat == {"custom_id": "line-1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    _, (plain,) = converted(b'{"prompt":"p","model":"own"}', endpoint="/v1/completions")
    assert plain["body"] == {"model": "own", "prompt": "p"}
    found, (embedding,) = converted(b'{"input":"p"}')
    assert (found, embedding["body"]) == ("/v1/embeddings", {"model": "m", "input": "p"})


def test_lines_that_are_neither_go_to_the_server_as_they_are() -> None:
    target = BytesIO()
    done = convert([b"{oops\n", b"\n", b"[1]"], target, wishes=Wishes(lambda: "m"))
    assert target.getvalue() == b"{oops\n\n[1]\n"  # the blank line keeps the numbers right
    assert (done.lines, done.mute) == (2, [])


def test_a_plain_line_without_a_question_keeps_its_number_and_is_reported() -> None:
    target = BytesIO()
    done = convert([b'{"prompt":"p"}\n', b"\n", b'{"promt":"p"}\n'], target, wishes=Wishes(lambda: "m"))
    assert done.mute == [3]
    body = {"model": "m", "promt": "p"}
    expected = {"custom_id": "line-3", "method": "POST", "url": "/v1/chat/completions", "body": body}
    assert orjson.loads(target.getvalue().splitlines()[2]) == expected


def test_parameters_go_into_plain_lines_that_do_not_name_them() -> None:
    target = BytesIO()
    wishes = Wishes(lambda: "m", parameters={"max_tokens": 5, "temperature": 0})
    lines = [b'{"prompt":"p","max_tokens":9}\n', request_line("a")]
    convert(lines, target, wishes=wishes)
    plain, openai = (orjson.loads(line) for line in target.getvalue().splitlines())
    assert (plain["body"]["max_tokens"], plain["body"]["temperature"]) == (9, 0)
    assert openai == orjson.loads(request_line("a"))


async def test_a_batch_that_runs_has_no_results_yet(served: Served, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(request_lines(1))
    batch_id = (await run("submit", str(source))).stdout.strip()
    done = await run("results", batch_id)
    assert done.exit_code == 1
    assert "has no answers yet: it is validating" in done.stderr
