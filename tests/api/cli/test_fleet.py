"""The table of `headway fleet`."""

from api.cli.fleet import tables

WORKER = {
    "id": "w",
    "state": "paused",
    "engine": "vllm",
    "slots": 4,
    "busy_slots": 1,
    "claimed": 12,
    "host": "h",
}
POOL = {
    "pool": "small",
    "draining": False,
    "paused": False,
    "slots": 4,
    "busy_slots": 1,
    "waiting": {"P0": 0, "P1": 1, "P2": 2, "P3": 30},
    "promoted": 4,
    "delayed": 5,
    "dead": 6,
    "workers": [WORKER],
}


def test_columns_are_aligned_and_pools_come_before_workers() -> None:
    assert list(
        tables({"pools": [POOL, POOL | {"pool": "a-longer-name", "draining": True, "workers": []}]})
    ) == [
        "POOL           STATE     WORKERS  SLOTS  BUSY  P0  P1  P2  P3  AGED  DELAYED  DEAD",
        "small          open      1        4      1     0   1   2   30  4     5        6",
        "a-longer-name  draining  0        4      1     0   1   2   30  4     5        6",
        "",
        "WORKER  POOL   STATE   ENGINE  SLOTS  BUSY  CLAIMED  HOST",
        "w       small  paused  vllm    4      1     12       h",
    ]


def test_pools_without_workers_have_no_second_table() -> None:
    assert len(list(tables({"pools": [POOL | {"paused": True, "workers": []}]}))) == 2
