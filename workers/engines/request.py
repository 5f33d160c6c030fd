"""What an engine is asked: the caller's body, and the fields that Headway sets in it. Pure.

Changed: the model's name, `stream`, `stream_options.include_usage` (token counts are always wanted), the priority of the
job's class in the engine's own currency, a cache salt for each tenant, a request id where requests are aborted by it.
"""

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from broker.tenants import DEFAULT
from workers.engine import EMBEDDINGS, EngineCall, EngineRejected
from workers.engines.dialects import Dialect

_ids = itertools.count()


@dataclass(slots=True)
class Shape:
    """How requests to one server look. `priority_sign` 0: none is sent. `refused`: fields that it does not take."""

    dialect: Dialect
    model: str | None = None
    priority_sign: int = 0
    refused: set[str] = field(default_factory=set)

    def body_of(self, call: EngineCall, *, stream: bool, request_id: str) -> bytes:
        body = {key: value for key, value in call.body.items() if key not in self.dialect.drops}
        if self.model is not None:
            body["model"] = self.model
        self._add_own(body, call, request_id=request_id)
        if call.endpoint == EMBEDDINGS:
            return orjson.dumps(body)
        options: Any = body.pop("stream_options", None)
        body["stream"] = stream
        if stream:
            wanted = options if isinstance(options, dict) else {}
            if "stream_options" not in self.refused:
                wanted = wanted | {"include_usage": True}
            if wanted:
                body["stream_options"] = wanted
            if self.dialect.reports_progress:
                body["return_progress"] = True
        return orjson.dumps(body)

    def request_id(self, call: EngineCall) -> str:
        """Another one for each attempt: an engine may not have forgotten the last one yet.

        Empty where it cannot be aborted by it: older SGLang wants a list of ids for several answers and fails on one.
        """
        if self.dialect.abort_path is None or _asks_for_several(call.body):
            return ""
        return f"{call.job_id}-{next(_ids)}"

    def to_blame(self, call: EngineCall, error: EngineRejected, *, without: frozenset[str]) -> str | None:
        """The field of Headway's that a refusal is about. `without`: those that this very request did not carry."""
        for words, name in self.dialect.refusals:
            own = name not in call.body or name in self.dialect.drops
            if words in error.body and own and name not in without:
                return name
        return None

    def _add_own(self, body: dict[str, Any], call: EngineCall, *, request_id: str) -> None:
        priority = self.priority_sign * call.rank
        if self.priority_sign and "priority" not in self.refused and (priority or self.priority_sign < 0):
            body["priority"] = priority
        if self.dialect.salts_cache and "cache_salt" not in self.refused:
            salt = cache_salt(call.tenant, body.get("cache_salt"))
            if salt:
                body["cache_salt"] = salt
        if request_id:
            body["rid"] = request_id


def _asks_for_several(body: Mapping[str, Any]) -> bool:
    return body.get("n") not in (None, 1) or any(
        isinstance(body.get(name), list) for name in ("prompt", "input")
    )


def cache_salt(tenant: str, wanted: object) -> str:
    """Empty for the default tenant. A salt of the caller's is mixed in: nobody can choose another tenant's.

    Prefixes are shared by equal salts only, so that no tenant can tell from the time to the first token what others asked.
    """
    if tenant == DEFAULT and not isinstance(wanted, str):
        return ""
    return hashlib.sha256(f"{tenant}\0{wanted if isinstance(wanted, str) else ''}".encode()).hexdigest()[:32]
