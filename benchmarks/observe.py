"""What watching costs, and whether what is shown is right.

python benchmarks/observe.py [--quick] [--json FILE] [--only PART ...]
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from figures import Figure, arguments, report
from observe_imbalance import imbalance
from observe_instead import instead
from observe_throughput import throughput
from observe_usage import usage

PARTS: dict[str, Callable[..., Coroutine[Any, Any, list[Figure]]]] = {
    "usage": usage,
    "instead": instead,
    "imbalance": imbalance,
    "throughput": throughput,
}


def main() -> None:
    options = arguments(__doc__)
    options.add_argument("--only", nargs="+", choices=PARTS, metavar="PART")
    args = options.parse_args()
    usual = [name for name in PARTS if not (args.quick and name == "instead")]  # which takes half a minute
    for name in args.only or usual:
        report(asyncio.run(PARTS[name](quick=args.quick)), args.json)


if __name__ == "__main__":
    main()
