"""How Celery is spoken to, the same in every process that sends, runs or watches tasks.

Celery carries ids, as JSON. It delivers at least once: a unit of work is protected by its own lease in Redis (see
`batches.py`), so nothing here has to be exact about redelivery.
"""

from typing import Any
from urllib.parse import unquote, urlsplit

from broker.topology import Topology, parse

QUEUE = "batch"
KEY_PREFIX = "headway.celery:"  # keeps apart from another Celery application on the same Redis
VISIBILITY_S = 3600  # a message whose worker was killed comes back after this; the sweeper is far earlier


def celery_options(url: str) -> dict[str, Any]:
    """For `app.conf.update`. `url`: Redis (a single server or Sentinel) or AMQP."""
    if urlsplit(url).scheme == "redis+sentinel":
        return _sentinel_options(parse(url))
    options: dict[str, Any] = {
        "broker_url": url,
        "result_backend": None,
        "task_ignore_result": True,
        "task_default_queue": QUEUE,
        "task_serializer": "json",
        "result_serializer": "json",
        "event_serializer": "json",
        "accept_content": ["json"],
        "broker_connection_timeout": 2.0,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,  # for ever; the default gives up after 100
    }
    if urlsplit(url).scheme.startswith("amqp"):
        return options
    # Celery's documentation asks for the visibility time-out in these three places
    return (
        options
        | {
            "broker_transport_options": {
                "visibility_timeout": VISIBILITY_S,
                "unacked_restore_interval": 5,  # seconds between looks, every time: by default it is 10 s, every tenth time
                "unacked_restore_throttle": 1,
                "global_keyprefix": KEY_PREFIX,
                "priority_steps": [0],  # one list instead of four
                "socket_keepalive": True,
                "socket_connect_timeout": 2.0,
                "socket_timeout": 30.0,  # without it a send to a half-open connection waits for ever
                "health_check_interval": 25,
            },
            "result_backend_transport_options": {"visibility_timeout": VISIBILITY_S},
            "visibility_timeout": VISIBILITY_S,
        }
    )


def _sentinel_options(topology: Topology) -> dict[str, Any]:
    """kombu wants the sentinels as URLs in a row, and the name of the master apart."""
    urls = (f"sentinel://{topology.login}{host}:{port}/{topology.db}" for host, port in topology.hosts)
    options = celery_options(";".join(urls))
    options["broker_transport_options"]["master_name"] = topology.service
    if topology.sentinel_login:
        name, _, password = topology.sentinel_login.removesuffix("@").partition(":")
        login = {"username": unquote(name) or None, "password": unquote(password)}
        options["broker_transport_options"]["sentinel_kwargs"] = login
    return options
