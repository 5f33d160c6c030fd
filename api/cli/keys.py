"""`headway keys`: API keys that need no restart. Talks to Redis itself: whoever can reach that is an operator."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import orjson
import typer

from broker.api_keys import KeyRecord, KeyStore
from broker.callbacks import Deliveries
from broker.connection import Pipe
from broker.errors import ConfigError
from broker.job import ServiceClass
from broker.limits import Quota
from broker.settings import load_settings
from broker.tenants import DEFAULT, NAME_PATTERN, Access

T = TypeVar("T")
app = typer.Typer(help="API keys: make, list, revoke. They count within a second, without a restart.")
Json = Annotated[bool, typer.Option("--json", help="Machine-readable.")]


@app.command()
def create(  # noqa: PLR0917 - its options
    tenant: Annotated[str, typer.Argument(help="Whose it is; see `tenants` in headway.yaml.")] = DEFAULT,
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
    classes: Annotated[str, typer.Option(help="It may use these only, such as P2,P3.")] = "",
    pools: Annotated[str, typer.Option(help="It may use these pools and routes only, comma separated.")] = "",
    admin: Annotated[
        bool, typer.Option("--admin", help="It may steer pools, reload, see dead letters.")
    ] = False,
    rpm: Annotated[int | None, typer.Option(min=1, help="Requests a minute.")] = None,
    tpm: Annotated[int | None, typer.Option(min=1, help="Tokens a minute.")] = None,
    concurrent: Annotated[int | None, typer.Option(min=1, help="Jobs at a time.")] = None,
    as_json: Json = False,
) -> None:
    """Make a key. It is shown once, here."""
    if NAME_PATTERN.fullmatch(tenant) is None:
        raise ConfigError(f"{tenant!r} is no tenant's name (64 of letters, digits, '.', '_', '-')")
    wanted = frozenset(ServiceClass.parse(text) for text in _words(classes))
    access = Access(wanted, frozenset(_words(pools)), admin)
    quota = Quota(requests_per_minute=rpm, tokens_per_minute=tpm, concurrent=concurrent)
    key, record = _ask(lambda keys, _: keys.create(tenant, name=name, access=access, quota=quota))
    if as_json:
        typer.echo(orjson.dumps({"key": key, **_document(record)}).decode())
        return
    typer.echo(key)
    typer.echo(f"{record.key_id} of {tenant}: keep it, it is not shown again", err=True)


@app.command("list")
def list_keys(as_json: Json = False) -> None:
    """All keys that were made here. Those of headway.yaml and HEADWAY_API_KEYS are not among them."""
    records = _ask(lambda keys, _: keys.all())
    if as_json:
        typer.echo(orjson.dumps([_document(record) for record in records]).decode())
        return
    for record in records:
        made = time.strftime("%Y-%m-%d %H:%M", time.gmtime(record.created_at))
        typer.echo(f"{record.key_id}  {record.tenant:16} {made}  {_scopes(record):24} {record.name}".rstrip())


@app.command()
def revoke(key_id: Annotated[str, typer.Argument(help="As `headway keys list` shows it.")]) -> None:
    """Have a key open nothing any more. Jobs that it has submitted go on."""
    record = _ask(lambda keys, _: keys.revoke(key_id))
    typer.echo(f"{record.key_id} of {record.tenant} is revoked")


@app.command()
def secret(tenant: Annotated[str, typer.Argument(help="Whose callbacks.")] = DEFAULT) -> None:
    """What a tenant's callbacks are signed with, where neither headway.yaml nor HEADWAY_CALLBACK_SECRET says."""
    typer.echo(_ask(lambda _, pipe: Deliveries(pipe).secret(tenant)))


def _ask(work: Callable[[KeyStore, Pipe], Awaitable[T]]) -> T:
    """Raises RedisAway, ConfigError."""

    async def run() -> T:
        settings = load_settings()
        pipe = Pipe(settings.redis_url, timeout_s=settings.redis_timeout_s)
        try:
            return await work(KeyStore(pipe), pipe)
        finally:
            await pipe.close()

    return asyncio.run(run())


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _scopes(record: KeyRecord) -> str:
    access, limits = record.access, record.quota.model_dump(exclude_none=True)
    words = [
        *sorted(c.name for c in access.classes),
        *sorted(access.pools),
        *(["admin"] if access.admin else []),
    ]
    return " ".join([*words, *(f"{name}={value}" for name, value in limits.items())]) or "-"


def _document(record: KeyRecord) -> dict[str, object]:
    """Without the digest: it says nothing, and is nobody's business."""
    return {
        "id": record.key_id,
        "tenant": record.tenant,
        "name": record.name,
        "classes": sorted(c.name for c in record.access.classes),
        "pools": sorted(record.access.pools),
        "admin": record.access.admin,
        "limits": record.quota.model_dump(exclude_none=True),
        "created_at": record.created_at,
    }
