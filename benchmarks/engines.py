"""Engines and what Headway gets out of them: full batches, a full KV cache, quick first tokens, warm prefixes.

    python benchmarks/engines.py [--quick] [--json FILE] [--trace conversation_trace.jsonl.gz]

`--trace`: Mooncake's conversation trace, which is not part of the repository; without it there are no `prefix.*` figures.
"""

from pathlib import Path

from engine_batching import batching, kv_cache
from engine_interactive import interactive
from engine_live import live
from engine_llamacpp_prefix import llamacpp_prefix
from engine_prefix import prefix
from figures import arguments, report


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--trace", type=Path, help="Mooncake's conversation trace, gzipped JSON lines")
    args = parser.parse_args()
    quick: bool = args.quick
    figures = [*live(quick=quick), *kv_cache(quick=quick), *interactive(quick=quick)]
    if not quick:
        figures += [*llamacpp_prefix(), *batching()]
    if args.trace is not None:
        figures += prefix(args.trace, quick=quick)
    report(figures, args.json)


if __name__ == "__main__":
    main()
