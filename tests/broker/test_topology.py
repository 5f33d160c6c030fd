"""What a URL stands for, and how a cluster's slots are read."""

import pytest

from broker import scripts
from broker.celery_options import celery_options
from broker.errors import ConfigError
from broker.keys import PoolKeys
from broker.policy import Order
from broker.script import script
from broker.settings import load_settings
from broker.topology import ANY, parse, read_slots, slot_of, tag_of
from tests.broker.jobs import submission


@pytest.mark.parametrize("url", ["redis://h:1/2", "rediss://u:p@h", "unix:///run/redis.sock?db=1"])
def test_single_servers_are_left_to_redis_py(url: str) -> None:
    assert (parse(url).kind, parse(url).url) == ("single", url)


def test_sentinel_url_names_sentinels_service_and_database() -> None:
    found = parse("redis+sentinel://user:p%40ss@a:1,b,[::1]:3/queue/2?sentinel_password=s&client_name=x")
    assert (found.kind, found.service, found.db) == ("sentinel", "queue", 2)
    assert found.hosts == (("a", 1), ("b", 26379), ("::1", 3))
    assert found.node(("10.0.0.1", 6380)) == "redis://user:p%40ss@10.0.0.1:6380/2?client_name=x"
    assert found.sentinel(("::1", 3)) == "redis://:s@[::1]:3"


def test_cluster_url_names_nodes_to_ask() -> None:
    found = parse("redis+cluster://:secret@a:7000,b?tls=true")
    assert (found.kind, found.hosts) == ("cluster", (("a", 7000), ("b", 6379)))
    assert found.node(("c", 7001)) == "rediss://:secret@c:7001/0"


@pytest.mark.parametrize(
    "url",
    [
        "http://secret@h",
        "redis+cluster://",
        "redis+cluster://secret@h:port",
        "redis+cluster://secret@h/1",
        "redis+sentinel://secret@h",
        "redis+sentinel://secret@h/queue/x",
    ],
)
def test_wrong_urls_are_refused_without_repeating_their_secrets(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(url)
    assert "secret" not in str(caught.value)


def test_slots_are_those_of_the_cluster_specification() -> None:
    """Source: the specification's check value, CRC16 of 123456789 is 0x31C3; and its rules for hash tags."""
    assert slot_of("123456789") == 0x31C3 % 16384
    assert slot_of("{user1000}.following") == slot_of("{user1000}.followers") == slot_of("user1000")
    assert slot_of("foo{}{bar}") not in (slot_of("foo"), slot_of("bar"))
    assert tag_of("foo{bar}{zap}") == "bar"
    assert tag_of("foo{}{bar}") == "foo{}{bar}"


def test_slot_map_is_read_and_forgets_one_node_at_a_time() -> None:
    topology = parse("redis+cluster://a:1")
    rows = [[0, 99, [b"", 1, b"id"]], [100, 16383, [b"b", 2, b"id"], [b"c", 3, b"id"]]]
    slots = read_slots(rows, topology, asked=("a", 1))
    assert (slots.at(0), slots.at(99), slots.at(100)) == ("redis://a:1/0", "redis://a:1/0", "redis://b:2/0")
    slots.forget("redis://a:1/0")
    assert (slots.at(0), slots.at(16383), slots.first()) == (None, "redis://b:2/0", "redis://b:2/0")
    slots.move(0, "redis://c:3/0")
    assert slots.nodes() == ["redis://b:2/0", "redis://c:3/0"]
    assert ANY not in range(16384)


def test_sharded_calls_differ_in_what_they_publish_only() -> None:
    call = scripts.cancel(submission().job_id)
    other = call.sharded()
    assert (
        other.script.source == call.script.source.replace(b"'PUBLISH'", b"'SPUBLISH'") != call.script.source
    )
    assert (other.keys, other.args, other.sharded()) == (call.keys, call.args, other)
    plain = scripts.enqueue(submission(), Order())
    assert plain.sharded() == plain


def test_renewal_publishes_nothing() -> None:
    """The heartbeat's own connection does not know whether channels belong to slots."""
    assert b"PUBLISH" not in script("renew").source


def test_reply_addresses_are_in_their_pools_slot() -> None:
    keys = PoolKeys("small")
    assert slot_of(keys.reply("1-ab")) == slot_of(keys.control) == slot_of(keys.prefix) == slot_of("small")


def test_celery_is_told_of_sentinels_in_its_own_way() -> None:
    options = celery_options("redis+sentinel://:p@a:1,b:2/queue/3?sentinel_username=u&sentinel_password=s")
    assert options["broker_url"] == "sentinel://:p@a:1/3;sentinel://:p@b:2/3"
    transport = options["broker_transport_options"]
    assert (transport["master_name"], transport["global_keyprefix"]) == ("queue", "headway.celery:")
    assert transport["sentinel_kwargs"] == {"username": "u", "password": "s"}


def test_a_cluster_needs_a_place_for_celery_and_rq() -> None:
    cluster = "redis+cluster://a:1"
    with pytest.raises(ConfigError, match="HEADWAY_CELERY_URL"):
        load_settings(redis_url=cluster)
    with pytest.raises(ConfigError, match="HEADWAY_CHORES_URL"):
        load_settings(redis_url=cluster, celery_url="amqp://b//")
    settings = load_settings(redis_url=cluster, celery_url="redis://c:6379/1")
    assert settings.chores_url == "redis://c:6379/1"
    named = load_settings(redis_url=cluster, celery_url="amqp://b//", chores_url="redis://d:6379/0")
    assert named.chores_url == "redis://d:6379/0"
