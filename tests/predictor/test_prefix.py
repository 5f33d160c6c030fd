"""Equal beginnings have equal hashes, and only they."""

import pytest

from predictor.prefix import CUTS, conversation_key, prefix_chain

SYSTEM = {"role": "system", "content": "You are a lawyer. " * 200}  # 3,600 characters


def chat(*texts: str) -> dict[str, list[dict[str, str]]]:
    return {"messages": [SYSTEM, *({"role": "user", "content": text} for text in texts)]}


def test_short_prompts_have_none() -> None:
    assert prefix_chain({"messages": [{"role": "user", "content": "hi"}]}) == ""
    assert prefix_chain({"prompt": "x" * (CUTS[0] - 1)}) == ""
    assert prefix_chain({"input": "x" * 5000}) == ""


def test_conversations_share_the_hashes_of_what_they_share() -> None:
    one = prefix_chain(chat("a" * 5000)).split(",")
    other = prefix_chain(chat("b" * 5000)).split(",")
    assert len(one) == len(other) == 4
    assert one[:2] == other[:2], "1,024 and 2,048 bytes lie in the system prompt"
    assert one[2] != other[2]


def test_next_turn_continues_the_chain_of_the_last() -> None:
    first = prefix_chain(chat("question " * 300))
    second = prefix_chain(chat("question " * 300, "answer " * 300, "more"))
    assert second.startswith(first)


def test_tenants_have_hashes_of_their_own() -> None:
    chains = [prefix_chain(chat("x"), tenant=tenant) for tenant in ("default", "a", "b", "a")]
    assert chains[0] == prefix_chain(chat("x"))
    assert chains[1] == chains[3]
    assert len({chain.split(",")[0] for chain in chains}) == 3


def test_tools_come_first() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "d" * 2000}}
    with_tools = prefix_chain(chat("x") | {"tools": [tool]})
    assert with_tools.split(",")[0] != prefix_chain(chat("x")).split(",")[0]
    assert with_tools.split(",")[0] == prefix_chain({"tools": [tool], "messages": []}).split(",")[0]


def test_chain_fits_a_compact_field() -> None:
    assert len(prefix_chain({"prompt": "x" * 200_000})) <= 64


def test_any_shape_of_content_is_taken() -> None:
    parts = [{"type": "text", "text": "y" * 3000}]
    assert prefix_chain({"messages": [{"role": "user", "content": parts}]})
    assert prefix_chain({"prompt": list(range(1000))})
    assert prefix_chain({"prompt": "\ud800" * 2000})


def test_turns_of_a_conversation_have_one_key_and_others_another() -> None:
    first = chat("question")
    key = conversation_key(first)
    turns = [*first["messages"], {"role": "assistant", "content": "a"}, {"role": "user", "content": "more"}]
    assert key is not None
    assert 0 <= key < 2**64
    assert conversation_key({"messages": turns}) == key
    assert conversation_key(chat("another question")) != key
    assert conversation_key({"messages": first["messages"][1:]}) != key, "the system prompt counts too"


@pytest.mark.parametrize(
    "body", [{"prompt": "x"}, {"messages": [SYSTEM]}, {"messages": "x"}, {"input": ["x"]}]
)
def test_what_has_no_turns_has_no_key(body: dict[str, object]) -> None:
    assert conversation_key(body) is None
