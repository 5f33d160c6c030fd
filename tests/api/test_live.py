"""Keys and headway.yaml count without a restart; a wrong file changes nothing."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from api.cli.main import app
from api.live import compare
from broker.api_keys import KeyStore
from broker.config import Config, ModelConfig
from broker.limits import Quota
from broker.settings import Settings
from broker.tenants import Access
from tests.api.harness import Served, chat, serve
from tests.conditions import wait_until

FILE = "models: [{pool: small}, {pool: large}]\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "headway.yaml"
    path.write_text(FILE)
    return path


def write(file: Path, text: str) -> None:
    file.write_text(text)


@pytest.fixture
async def served(redis_url: str, file: Path) -> AsyncIterator[Served]:
    async with serve(Settings(redis_url=redis_url, config=file), config=None) as running:
        yield running


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def status(served: Served, key: str = "") -> int:
    answer = await served.http.get("/v1/models", headers=bearer(key) if key else {})
    return answer.status_code


async def test_first_key_shuts_the_door_and_a_revoked_one_opens_nothing(served: Served) -> None:
    assert await status(served) == 200
    keys = KeyStore(served.pipe)
    key, record = await keys.create("acme", name="ci", access=Access(), quota=Quota(requests_per_minute=5))

    async def answers(code: int, key: str = "") -> bool:
        return await status(served, key) == code

    await wait_until(lambda: answers(401), what="a door that is shut")
    assert await status(served, key) == 200
    answer = await served.http.post("/v1/jobs", json=chat(**{"class": "P1"}), headers=bearer(key))
    assert answer.headers["x-ratelimit-remaining-requests"] == "4"
    assert (await served.producer.get(answer.json()["id"])).tenant == "acme"
    assert (await served.http.post("/admin/reload", headers=bearer(key))).status_code == 403
    await served.producer.cancel(answer.json()["id"])
    await keys.revoke(record.key_id)
    await wait_until(lambda: answers(401, key), what="a key that opens nothing")
    assert await status(served) == 401, "without a key that counts the door stays shut"


async def test_what_is_kept_of_a_key_does_not_hold_it(served: Served) -> None:
    key, record = await KeyStore(served.pipe).create("acme", name="", access=Access(), quota=Quota())
    [data] = await served.pipe.command("HVALS", "hw:keys")
    assert key.encode() not in data
    assert record.digest.encode() in data


def test_command_makes_lists_and_revokes_keys(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_REDIS_URL", redis_url)
    run = CliRunner().invoke
    made = run(app, ["keys", "create", "acme", "--name", "ci", "--classes", "P2", "--rpm", "60", "--admin"])
    assert made.exit_code == 0, made.output
    key = made.stdout.splitlines()[0]
    assert key.startswith("hw-")
    listed = run(app, ["keys", "list"]).stdout
    assert key not in listed
    for word in ("acme", "ci", "P2", "admin", "requests_per_minute=60"):
        assert word in listed
    assert run(app, ["keys", "revoke", listed.split()[0]]).exit_code == 0
    assert run(app, ["keys", "list"]).stdout == ""


async def test_changed_file_is_read_and_a_wrong_one_is_refused(
    served: Served, file: Path, redis_url: str
) -> None:
    write(file, FILE.replace("{pool: small}", "{pool: small, aliases: [tiny]}"))
    told = (await served.http.post("/admin/reload")).json()
    assert told == {"object": "reload", "changed": ["models"], "needs_restart": []}

    async def names() -> set[str]:
        return {model["id"] for model in (await served.http.get("/v1/models")).json()["data"]}

    assert "tiny" in await names()
    write(file, "models: [{pool: small, slots: many}]\n")
    refused = await served.http.post("/admin/reload")
    assert refused.status_code == 422
    assert "slots" in refused.json()["error"]["message"]
    assert refused.json()["error"]["code"] == "invalid_config"
    assert "tiny" in await names()


async def test_file_is_read_by_itself_when_it_changes(redis_url: str, file: Path) -> None:
    settings = Settings(redis_url=redis_url, config=file)
    async with serve(settings, config=None) as served:
        write(file, "tenants: [{name: acme, keys: [k1]}]\n" + FILE)

        async def shut() -> bool:
            return await status(served) == 401

        await wait_until(shut, what="a file that is read again")
        assert await status(served, "k1") == 200


def test_what_running_workers_keep_is_said() -> None:
    before = Config(models=(ModelConfig(pool="a"), ModelConfig(pool="b")))
    after = Config(models=(ModelConfig(pool="a", slots=3, api_key=SecretStr("x")), ModelConfig(pool="c")))
    change = compare(before, after)
    assert change.changed == ("models",)
    assert [each.partition(";")[0] for each in change.restart] == [
        "models: b is gone",
        "models: c is new",
        "models: slots, api_key of a",
    ]
