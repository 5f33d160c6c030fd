"""Leases as tests need them."""

from broker.job import Lease, ServiceClass


def lease(name: str, service_class: int = 0, **changes: object) -> Lease:
    """A streamed job of one second and 100 KV tokens, changed as told."""
    values: dict[str, object] = {
        "job_id": name,
        "token": 1,
        "service_class": ServiceClass(service_class),
        "endpoint": "/v1/completions",
        "stream": True,
        "attached": False,
        "attempt": 1,
        "run_s": 1.0,
        "deadline": 0.0,
        "tenant": "t",
        "body": b"",
        "kv_tokens": 100,
    }
    return Lease(**(values | changes))  # type: ignore[arg-type]
