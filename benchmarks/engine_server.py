"""llama.cpp with the embedded model as a process of its own: prints its address, model and key, runs until stdin closes."""

import asyncio
import json
import sys

from workers.engines.llamacpp import LlamaCppEngine


async def main(slots: int) -> None:
    engine = LlamaCppEngine(slots=slots)
    await engine.start()
    limits = await engine.limits()
    url, key = engine.address
    print(json.dumps({"url": url, "model": limits.model, "key": key}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
