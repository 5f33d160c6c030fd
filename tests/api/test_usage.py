"""`/v1/usage` over HTTP: each tenant its own, operators everybody's; by day, tenant, class and model; as JSON and as CSV."""

import csv
import io
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr

from broker import accounts
from broker.accounts import Used
from broker.config import Config, ModelConfig
from broker.route_config import RouteConfig
from broker.settings import Settings
from broker.tenants import TenantConfig
from tests.api.harness import ScriptedWorker, Served, serve
from tests.workers.leases import lease

CONFIG = Config(
    models=(ModelConfig(pool="small", gpu_hour_usd=1.0), ModelConfig(pool="large", gpu_hour_usd=4.0, gpus=2)),
    routes=(RouteConfig(name="auto", small="small", large="large"),),
    tenants=tuple(TenantConfig(name=name, keys=(SecretStr(f"{name}-key"),)) for name in ("even", "odd")),
)
ONE = Used(1, 1, prompt_tokens=100, output_tokens=10, cached_tokens=40, gpu_us=1_000_000, nano_usd=277_778)


@pytest.fixture
async def served(redis_url: str) -> AsyncIterator[Served]:
    settings = Settings(redis_url=redis_url, api_keys=(SecretStr("admin-key"),))
    async with serve(settings, config=CONFIG) as running:
        yield running


@pytest.fixture
async def booked(served: Served, worker: ScriptedWorker) -> Served:
    """Two requests of `even`, one of `odd`, in the small pool."""
    for number, (tenant, rank) in enumerate((("even", 0), ("even", 2), ("odd", 0))):
        await worker.account(lease(f"job_{number:026d}.small", rank, tenant=tenant), ONE)
    return served


async def ask(served: Served, who: str, **query: str) -> Any:
    headers = {"Authorization": f"Bearer {who}-key"}
    return await served.http.get("/v1/usage", params=query, headers=headers)


async def test_a_tenant_sees_its_own_and_an_operator_everybodys(booked: Served) -> None:
    for tenant, requests in (("even", 2), ("odd", 1), ("admin", 3)):
        document = (await ask(booked, tenant)).json()
        [row] = document["data"]
        assert (row["day"], row["requests"]) == (str(accounts.today()), requests)
        assert document["total"] == {name: value for name, value in row.items() if name != "day"}
    rows = (await ask(booked, "even", by="tenant")).json()["data"]
    assert [row["tenant"] for row in rows] == ["even"]


async def test_rows_are_grouped_as_asked_and_add_up(booked: Served) -> None:
    for by, count in (("tenant", 2), ("tenant,class", 3), ("model", 1), ("day,tenant,class,model", 3)):
        document = (await ask(booked, "admin", by=by)).json()
        assert len(document["data"]) == count
        for name in ("requests", "prompt_tokens", "output_tokens", "cached_tokens"):
            assert sum(row[name] for row in document["data"]) == document["total"][name]
    row = (await ask(booked, "odd", by="class,model")).json()["data"][0]
    assert (row["class"], row["model"], row["gpu_seconds"], row["usd"]) == ("P0", "small", 1.0, 0.000278)


async def test_only_days_that_were_asked_for_are_in_it(booked: Served) -> None:
    yesterday = accounts.today() - timedelta(1)
    document = (await ask(booked, "admin", **{"from": str(yesterday), "to": str(yesterday)})).json()
    assert (document["data"], document["total"]["requests"]) == ([], 0)
    assert (document["from"], document["to"]) == (str(yesterday), str(yesterday))


async def test_csv_has_the_same_rows(booked: Served) -> None:
    answer = await ask(booked, "admin", by="tenant,class", format="csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    document = (await ask(booked, "admin", by="tenant,class")).json()
    assert rows == [{name: str(value) for name, value in row.items()} for row in document["data"]]


async def test_what_it_would_have_been_instead_is_beside_it(booked: Served, worker: ScriptedWorker) -> None:
    bills = (await ask(booked, "admin")).json()["instead"]
    assert bills["actual"] == {"gpu_seconds": 3.0, "usd": 0.000833}
    assert bills["no_prefix_reuse"]["gpu_seconds"] > 3.0
    assert bills["all_large"] is None  # the large pool has not run anything yet
    large = Used(1, 1, prompt_tokens=0, output_tokens=10, gpu_us=5_000_000)
    await worker.account(lease(f"job_{9:026d}.large", tenant="odd"), large)
    even = (await ask(booked, "even")).json()
    assert (
        even["instead"]["all_large"]["gpu_seconds"] > 2 * 5.0
    )  # the 20 tokens that it wrote, at half a second each


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"from": "yesterday"}, "from"),
        ({"to": "2026-02-30"}, "to"),
        ({"to": "0001-01-01"}, "to"),
        ({"from": "2026-03-02", "to": "2026-03-01"}, "from"),
        ({"from": "2020-01-01", "to": "2026-03-01"}, "from"),
        ({"by": "colour"}, "by"),
        ({"by": ""}, "by"),
        ({"format": "xml"}, "format"),
        ({"tenant": "odd"}, "tenant"),
    ],
)
async def test_a_query_that_cannot_be_is_named(served: Served, query: dict[str, str], param: str) -> None:
    answer = await ask(served, "even", **query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_without_a_price_there_is_no_money(redis_url: str, worker: ScriptedWorker) -> None:
    await worker.account(lease(f"job_{0:026d}.small"), Used(1, 1, 5, 5, 0, 1_000_000))
    async with serve(Settings(redis_url=redis_url)) as served:
        document = (await served.http.get("/v1/usage")).json()
    assert (document["total"]["usd"], document["instead"]["actual"]["usd"]) == (None, None)
