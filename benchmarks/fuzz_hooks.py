"""Loaded by schemathesis, in its own environment: most requests get an idempotency key of their own.

It gives the simplest one that the schema allows to nearly all, which would then be refused as repeats of each other.
"""

import itertools
from typing import Any

import schemathesis

KEY = "Idempotency-Key"
NUMBERS = itertools.count(1)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:  # noqa: ARG001 - what a hook is given
    if case.headers and len(case.headers.get(KEY, "")) == 1 and (number := next(NUMBERS)) % 8:
        case.headers[KEY] = f"own key {number}"
