"""The batch commands keep the rules of the queue's: headers, keys of one hash tag, bounded, the token first."""

import re
from pathlib import Path

import pytest

from broker import batch_scripts, scripts
from broker.batch_scripts import Cut, Held, Outcome, Tally
from broker.keys import BatchKeys
from broker.script import Call

FOLDER = Path(scripts.__file__).parent / "lua" / "batch"
COMMANDS = sorted(path.stem for path in FOLDER.glob("[!_]*.lua"))
BATCH = "batch_a"
HELD = Held(BATCH, "3", 7)
KEYS = BatchKeys(BATCH)
WORDS = {"batch": KEYS.batch, "todo": KEYS.todo, "unit": KEYS.unit("3"), "plan unit": KEYS.unit("plan")}
CALLS: dict[str, Call] = {
    "create": batch_scripts.create(BATCH, {"a": 1}, window_s=1, ttl_s=1),
    "take": batch_scripts.take(BATCH, "3", lease_s=1),
    "renew": batch_scripts.renew(HELD, Tally(), lease_s=1),
    "slice": batch_scripts.cut_slice(Held(BATCH, "plan", 7), Cut(3, 0, 1, 1, 1)),
    "planned": batch_scripts.planned(Held(BATCH, "plan", 7), lines=1, slices=1, at_once=1),
    "done": batch_scripts.done(HELD, Tally()),
    "end": batch_scripts.end(HELD, Outcome(1.0)),
    "cancel": batch_scripts.cancel(BATCH),
    "due": batch_scripts.due(BATCH, limit=1),
}


def text(name: str) -> str:
    return (FOLDER / f"{name}.lua").read_text()


def entries(name: str, field: str) -> list[str]:
    """`1 batch, 2 todo` as a list; a comment in brackets is dropped."""
    match = re.search(rf"^-- {field}: (.+)$", text(name), re.MULTILINE)
    assert match is not None
    found = re.sub(r" \([^)]*\)", "", match[1]).split(", ")
    return [entry for entry in found if re.match(r"\d", entry)]


def test_every_command_has_a_builder_here() -> None:
    assert set(CALLS) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_header_has_a_purpose_and_all_fields_in_order(name: str) -> None:
    assert re.match(r"-- [^\n]+\.\n-- KEYS: ", text(name))
    found = re.findall(r"^-- ([A-Z]+): ", text(name), re.MULTILINE)
    assert found == ["KEYS", "ARGV", "RETURNS", "INVARIANT", "INCLUDES"]


@pytest.mark.parametrize("name", COMMANDS)
def test_builder_puts_each_key_where_the_header_says(name: str) -> None:
    named = [entry.split(" ", 1)[1] for entry in entries(name, "KEYS")]
    words = WORDS | {"slice unit": KEYS.unit("3")}
    if name == "planned":
        words["plan unit"] = KEYS.unit("plan")
    assert CALLS[name].keys == tuple(words[word] for word in named)
    used = {int(n) for n in re.findall(r"KEYS\[(\d+)\]", text(name))}
    assert used == set(range(1, len(named) + 1))


@pytest.mark.parametrize("name", COMMANDS)
def test_builder_passes_as_many_arguments_as_the_header_names(name: str) -> None:
    named, call = entries(name, "ARGV"), CALLS[name]
    if named[-1].split(" ")[0].endswith(".."):
        assert (len(call.args) - len(named) + 1) % 2 == 0  # name, value pairs
    else:
        assert len(call.args) == len(named)
        used = {int(n) for n in re.findall(r"ARGV\[(\d+)\]", text(name))}
        assert used == set(range(1, len(named) + 1))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_key_has_the_batchs_hash_tag(name: str) -> None:
    assert all(key.startswith(f"hw:batch:{{{BATCH}}}") for key in CALLS[name].keys)


@pytest.mark.parametrize("name", COMMANDS)
def test_command_is_short_and_bounded(name: str) -> None:
    code = re.sub(r"--.*", "", text(name))
    assert len(text(name).splitlines()) <= 80
    assert not re.search(r"\b(while|repeat)\b|'(KEYS|SCAN|HGETALL|SMEMBERS)'", code)
    assert all("'LIMIT', 0, " in line for line in code.splitlines() if "ZRANGEBYSCORE" in line)


@pytest.mark.parametrize("name", ["renew", "slice", "planned", "done", "end"])
def test_token_is_compared_before_the_first_write(name: str) -> None:
    compared = re.search(r"'token'\) ~= ARGV", text(name))
    writes = [m.start() for m in re.finditer(r"'(HSET|ZADD|ZREM|DEL|PEXPIRE)'|\b(sent|count)\(", text(name))]
    assert compared
    assert compared.start() < min(writes)
