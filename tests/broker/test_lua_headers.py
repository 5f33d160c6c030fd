"""Every Lua command says what it takes, and takes what it says; none of them can run for long."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from broker import accounts, fleet, learning, scripts
from broker.policy import Asking, Limits, Order, Room
from broker.script import Call
from broker.scripts import Beat, Ending, Return
from tests.broker.jobs import KEYS, POOL, submission

FOLDER = Path(scripts.__file__).parent / "lua"
COMMANDS = sorted(path.stem for path in FOLDER.glob("[!_]*.lua"))
PARTS = sorted(path.stem.removeprefix("_") for path in FOLDER.glob("_*.lua"))
FIELDS = ("KEYS", "ARGV", "RETURNS", "INVARIANT", "INCLUDES")
MAX_LINES = 80
NOT_ALLOWED = (
    "KEYS",
    "SCAN",
    "HSCAN",
    "SSCAN",
    "ZSCAN",
    "HGETALL",
    "SMEMBERS",
    "HKEYS",
    "HVALS",
    "SORT",
    "FLUSHALL",
)
A, B = f"job_{'a' * 26}.{POOL}", f"job_{'b' * 26}.{POOL}"
BEAT = Beat("w1", b"{}", ((A, 1), (B, 2)), 10.0)
CALLS: dict[str, Call] = {
    "enqueue": scripts.enqueue(submission(metadata=b"{}"), Order()),
    "ahead": scripts.ahead(A, Order().aging),
    "claim": scripts.claim(POOL, Asking("w1", 10.0), room=Room(2)),
    "renew": scripts.renew(POOL, BEAT),
    "steer": scripts.steer(POOL, "w1", wish="drain"),
    "append": scripts.append(A, 1, seq=1, data=b"x", maxlen=10),
    "finish": scripts.finish(A, 1, ending=Ending(succeeded=True, data=b"{}")),
    "release": scripts.release(A, 1, given=Return("error"), limits=Limits()),
    "cancel": scripts.cancel(A),
    "feed": scripts.feed(A),
    "redrive": scripts.redrive(A, B, deadline_s=1.0),
    "reap": scripts.reap(POOL, Limits()),
    "urgent": scripts.urgent(POOL),
    "learn": learning.report(POOL, [learning.Outcome("key", (1.0,), 1, "chat", 5, 0, 7, 1.0, 1.5)]),
    "oldest": fleet.oldest(POOL),
    "account": accounts.flush(POOL, "w1", number=1, sums={("td", "gpu_us|0|default"): 1}),
}


@dataclass(frozen=True)
class Header:
    purpose: str
    fields: dict[str, str]
    body: str

    def numbers(self, field: str) -> tuple[set[int], bool]:
        """The indices that a KEYS or ARGV line names, and whether the last one is the first of many."""
        found, rest = set[int](), False
        for first, last, many in re.findall(r"(?:^|, )(\d+)(?:-(\d+))?(\.\.)? ", self.fields[field]):
            found |= set(range(int(first), int(last or first) + 1))
            rest = bool(many)
        return found, rest


@cache
def header(name: str) -> Header:
    """Comment lines on top: a purpose, then `NAME: text` fields; an indented line continues the one before it."""
    lines = (FOLDER / f"{name}.lua").read_text().splitlines()
    top = next(i for i, line in enumerate(lines) if not line.startswith("--"))
    purpose, fields, last = "", dict[str, str](), ""
    for line in lines[:top]:
        text = line.removeprefix("--")
        if match := re.match(r" ([A-Z]+): (.+)", text):
            last = match[1]
            fields[last] = match[2].strip()
        elif last:
            fields[last] += " " + text.strip()
        else:
            purpose += text
    return Header(purpose.strip(), fields, "\n".join(lines[top:]))


def used(name: str, array: str) -> set[int]:
    """The indices that a body reads, by number or as `base + class`; a range read from i on counts as i."""
    body = header(name).body
    found = {int(number) for number in re.findall(rf"{array}\[(\d+)\]", body)}
    for base in re.findall(rf"{array}\[(\d+) \+ (?:class|higher)\]", body):
        found |= set(range(int(base), int(base) + 4))
    found |= {int(number) for number in re.findall(rf"unpack\({array}, (\d+)[,)]", body)}
    return found | {int(number) for number in re.findall(rf"for i = (\d+), #{array}", body)}


def test_every_command_has_a_builder_here() -> None:
    assert set(CALLS) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_header_has_a_purpose_and_all_fields_in_order(name: str) -> None:
    assert header(name).purpose.endswith(".")
    assert tuple(header(name).fields) == FIELDS
    assert all(header(name).fields.values())


@pytest.mark.parametrize("name", PARTS)
def test_part_says_what_it_is_for(name: str) -> None:
    assert (FOLDER / f"_{name}.lua").read_text().startswith("-- ")


@pytest.mark.parametrize("name", COMMANDS)
def test_header_names_exactly_the_keys_that_are_used(name: str) -> None:
    named, many = header(name).numbers("KEYS")
    assert not many
    assert named == set(range(1, len(named) + 1))
    assert named == used(name, "KEYS")


@pytest.mark.parametrize("name", COMMANDS)
def test_header_names_exactly_the_arguments_that_are_used(name: str) -> None:
    named, many = header(name).numbers("ARGV")
    assert named == set(range(1, len(named) + 1))
    assert named == used(name, "ARGV")
    assert many == bool(re.search(r"unpack\(ARGV|#ARGV", header(name).body))


@pytest.mark.parametrize("name", COMMANDS)
def test_builder_passes_as_many_keys_and_arguments_as_the_header_names(name: str) -> None:
    keys, _ = header(name).numbers("KEYS")
    args, many = header(name).numbers("ARGV")
    assert len(CALLS[name].keys) == len(keys)
    assert len(CALLS[name].args) == len(args) or (many and len(CALLS[name].args) >= len(args))
    if many and name not in ("finish", "enqueue", "learn", "account"):
        assert (len(CALLS[name].args) - len(args)) % 2 == 1  # name, value pairs


@pytest.mark.parametrize("name", COMMANDS)
def test_builder_puts_each_key_where_the_header_says(name: str) -> None:
    """By the names of `keys.PoolKeys`; a set or counter is called by its own suffix."""
    words = {"prefix": KEYS.prefix, "job": KEYS.job(A), "payload": KEYS.payload(A), "output": KEYS.output(A)}
    words |= {"ready of the class": KEYS.ready(0)}
    words |= {"history": KEYS.history(A), "fair": KEYS.fair("default"), "worker": KEYS.worker("w1")}
    words |= {"dead job": KEYS.job(A), "its payload": KEYS.payload(A)}
    words |= {"new job": KEYS.job(B), "new payload": KEYS.payload(B)}
    text = header(name).fields["KEYS"].replace("2-5 ready:0..3", "2 ready:0, 3 ready:1, 4 ready:2, 5 ready:3")
    text = text.replace("3-6 ready:0..3", "3 ready:0, 4 ready:1, 5 ready:2, 6 ready:3")
    entries = [entry.split(" ", 1) for entry in text.split(", ")]
    assert CALLS[name].keys == tuple(words.get(word, KEYS.named(word)) for _, word in entries)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_key_has_the_pools_hash_tag(name: str) -> None:
    assert all(key.startswith(f"hw:{{{POOL}}}:") for key in CALLS[name].keys)


@pytest.mark.parametrize("name", COMMANDS)
def test_includes_are_what_the_body_calls(name: str) -> None:
    """A part that another part calls counts as well: settle tells, bury settles."""
    texts = {part: (FOLDER / f"_{part}.lua").read_text() for part in PARTS}
    functions = {part: re.findall(r"local function (\w+)", text) for part, text in texts.items()}
    included = [part.strip() for part in header(name).fields["INCLUDES"].split(",")]
    text = header(name).body + "".join((FOLDER / f"_{part}.lua").read_text() for part in included)
    text = re.sub(r"local function \w+", "", text)
    called = {part for part, names in functions.items() if re.search(rf"\b({'|'.join(names)})\(", text)}
    called |= {"settle"} if "SETTLE_FIELDS" in header(name).body else set()
    assert set(included) == called


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.lua")), ids=lambda path: path.stem)
def test_script_is_short_and_bounded(path: Path) -> None:
    code = re.sub(r"--.*", "", path.read_text())
    assert len(path.read_text().splitlines()) <= MAX_LINES
    assert not re.search(r"\b(while|repeat)\b", code)
    commands = re.findall(r"redis\.call\('(\w+)'([^\n]*)", code)
    assert commands or path.stem in ("_bury", "finish")
    for command, rest in commands:
        assert command not in NOT_ALLOWED
        if command in ("ZRANGEBYSCORE", "ZREVRANGEBYSCORE", "ZRANGEBYLEX"):
            assert "'LIMIT', 0, " in rest
        if command in ("ZRANGE", "LRANGE", "ZREVRANGE"):
            assert not re.search(r", -1\b", rest), "reads to the end"


@pytest.mark.parametrize("name", COMMANDS)
def test_time_is_read_through_the_one_snippet(name: str) -> None:
    assert "'TIME'" not in header(name).body
    assert "os.clock" not in header(name).body


@pytest.mark.parametrize("name", ["renew", "append", "_finish", "release"])
def test_token_is_compared_before_the_first_write_to_a_job(name: str) -> None:
    body = (FOLDER / f"{name}.lua").read_text()
    compared = re.search(r"job\[\d\] [~=]= (ARGV\[|token)", body)
    writes = [
        m.start() for m in re.finditer(r"settle\(|conclude\(|'XADD'|'RPUSH'|KEYS\[2\], 'errors'|'XX'", body)
    ]
    assert compared
    assert writes
    assert compared.start() < min(writes)
