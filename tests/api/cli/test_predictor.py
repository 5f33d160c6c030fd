"""`headway predictor`: each command as it is typed."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.cli.main import app
from broker import fleet, learning
from broker.connection import Pipe
from predictor.model_store import ModelStore
from predictor.own_traffic import Seen, write_rows
from tests.predictor.small_models import folder_of
from tests.predictor.tenants import outcomes

HABITS = (30.0, 90.0, 250.0, 700.0)


@pytest.fixture
def home(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path))
    monkeypatch.setenv("HEADWAY_REDIS_URL", redis_url)
    return tmp_path


def typed(*words: str) -> str:
    result = CliRunner().invoke(app, ["predictor", *words])
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.output


async def serve(url: str, n: int) -> None:
    pipe = Pipe(url)
    await fleet.announce_pool(pipe, "small")
    await pipe.run(learning.report("small", list(outcomes(n, habits=HABITS))))
    await pipe.close()


def test_train_report_versions_and_rollback_on_own_traffic(home: Path, redis_url: str) -> None:
    asyncio.run(serve(redis_url, 1000))
    assert "they serve now" in typed("train")
    version = ModelStore(home).serving()
    listed = typed("versions")
    assert f"* {version}: tau " in listed
    assert "  shipped: tau " in listed
    typed("report", "--page", str(home / "page.html"))
    page = (home / "page.html").read_text()
    assert version in page
    assert "Calibration" in page
    assert "models shipped serve now" in typed("rollback")
    assert ModelStore(home).serving() == "shipped"


def test_train_takes_files_and_may_only_try(home: Path) -> None:
    files = [home / "one.jsonl", home / "two.jsonl"]
    made = [Seen("small", (at, 0), each) for at, each in enumerate(outcomes(800, habits=HABITS))]
    for number, file in enumerate(files):
        write_rows(file, made[number * 400 : (number + 1) * 400])
    said = typed("train", *map(str, files), "--dry-run")
    assert "160 requests" in said
    assert "not promoted: it was only tried out" in said
    assert ModelStore(home).names() == ["shipped"]


def test_a_version_that_cannot_be_read_is_listed_with_the_reason(home: Path) -> None:
    store = ModelStore(home)
    store.add(folder_of(home / "candidate", tokens=10.0, version="a1"))
    (store.folder("a1") / "card.json").write_bytes(b"{}")
    assert "a1: " in typed("versions")
    assert "not the card of a model folder" in typed("versions")


def test_what_cannot_be_done_is_said(home: Path) -> None:
    result = CliRunner().invoke(app, ["predictor", "rollback"])
    assert result.exit_code != 0
    assert "nothing served before" in str(result.exception)
