"""Runs public prompts through the embedded engine and writes what came of them, for `predictor_train.py`.

Appends one JSON line a prompt, and goes on where it stopped. The file holds prompts: it belongs outside the project.
"""

import argparse
import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import aiohttp
from predictor_cases import user
from predictor_rows import DATA, jsonl
from predictor_shipped import metatool

from workers.engines.llamacpp import LlamaCppEngine

MODEL = "smollm2-135m-instruct"
MOST_TOKENS = 1024
AT_ONCE = 8
SOURCES = {"alpaca": 551, "arena": 200, "metatool": 250, "belle": 120, "mtbench101": 250, "bfcl": 150}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--prompts", type=int, default=600)
    options = parser.parse_args()
    options.file.touch()
    done = {json.loads(line)["id"] for line in options.file.read_text("utf-8").splitlines()}
    wanted = [(name, text) for name, text in prompts()[: options.prompts] if name not in done]
    with options.file.open("a", encoding="utf-8") as file:
        asyncio.run(run(wanted, file))


def prompts() -> list[tuple[str, str]]:
    """(name, text), shuffled, the same each time."""
    chance = random.Random(7)
    found = [
        (name, text)
        for source, most in SOURCES.items()
        for name, text in _some(sorted(_texts(source)), most, chance)
        if 3 < len(text) < 8_000
    ]
    chance.shuffle(found)
    return found


async def run(wanted: list[tuple[str, str]], file: TextIO) -> None:
    """AT_ONCE at a time, as a worker would."""
    engine = LlamaCppEngine(threads=1)
    await engine.start()
    url, key = engine.address
    left = iter(wanted)
    headers, patience = {"Authorization": f"Bearer {key}"}, aiohttp.ClientTimeout(900)
    async with aiohttp.ClientSession(headers=headers, timeout=patience) as session:

        async def take() -> None:
            for name, text in left:
                document = user(text)
                asked = {**document, "max_tokens": MOST_TOKENS, "temperature": 0.2, "seed": 1}
                async with session.post(f"{url}/v1/chat/completions", json=asked) as answer:
                    said = await answer.json()
                usage = said["usage"]
                row = {
                    "id": name,
                    "model": MODEL,
                    "document": document,
                    "prompt_tokens": usage["prompt_tokens"],
                    "output_tokens": usage["completion_tokens"],
                    "finish": said["choices"][0]["finish_reason"],
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()

        await asyncio.gather(*[take() for _ in range(AT_ONCE)])
    await engine.close()


def _some(found: list[tuple[str, str]], most: int, chance: random.Random) -> list[tuple[str, str]]:
    return found if len(found) <= most else chance.sample(found, most)


def _texts(source: str) -> Iterator[tuple[str, str]]:
    if source == "alpaca":
        yield from ((f"alpaca {r['idx']}", r["prompt"]) for r in jsonl("alpaca_eval/prompts.jsonl.gz"))
    elif source == "arena":
        yield from ((f"arena {r['uid']}", r["prompt"]) for r in jsonl("arena_hard/questions_v2.0.jsonl.gz"))
    elif source == "metatool":
        yield from ((f"metatool {at}", text) for at, (text, _) in enumerate(metatool()))
    elif source == "belle":
        asked = enumerate(jsonl("prompts_misc/belle_eval_set.json.gz"))
        yield from ((f"belle {at}", r["question"]) for at, r in asked)
    elif source == "mtbench101":
        talks = jsonl("prompts_misc/mtbench101.jsonl.gz")
        yield from ((f"mtbench101 {r['task']} {r['id']}", r["history"][0]["user"]) for r in talks)
    else:
        yield from ((f"bfcl {r['id']}", r["user"]) for r in jsonl("bfcl_v4/questions.jsonl.gz"))


if __name__ == "__main__":
    assert DATA.is_dir(), f"no data sets in {DATA}"
    main()
