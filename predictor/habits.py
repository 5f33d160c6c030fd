"""What this process knows of the past of tenants' templates: a cache of what Redis keeps (`broker/learning.py`). Pure.

A template that is asked for is noted, and whoever owns the cache fetches what was noted about once a second; until then a
request goes without its past. So a forecast never waits, and a past is at most about a second old.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from broker.learning import EVERYBODY
from predictor.history import NO_HISTORY, History, Past

MOST = 20_000  # templates of all pools, of about 200 bytes each
MOST_ASKED = 2_000  # that are fetched at a time

Key = tuple[str, str]  # pool, past key


def past_key(tenant: str, template: str) -> str:
    """Of one tenant's template, see `history.template_key`; 16 hexadecimal digits."""
    return hashlib.blake2b(f"{tenant}\0{template}".encode(), digest_size=8).hexdigest()


class Habits:
    """Pasts by pool and key, the least used ones dropped first."""

    def __init__(self, *, most: int = MOST) -> None:
        self._most = most
        self._known: OrderedDict[Key, History] = OrderedDict()
        self._asked: dict[Key, None] = {}

    def past(self, pool: str, key: str) -> Past:
        """As far as it is known here; notes that it was asked for."""
        return Past(self._look(pool, key), self._look(pool, EVERYBODY))

    def _look(self, pool: str, key: str) -> History:
        where = (pool, key)
        if len(self._asked) < MOST_ASKED:
            self._asked[where] = None
        found = self._known.get(where)
        if found is None:
            return NO_HISTORY
        self._known.move_to_end(where)
        return found

    def asked(self) -> dict[str, list[str]]:
        """Keys by pool that were looked for since the last call."""
        asked, self._asked = self._asked, {}
        found: dict[str, list[str]] = {}
        for pool, key in asked:
            found.setdefault(pool, []).append(key)
        return found

    def put(self, pool: str, pasts: Mapping[str, Iterable[float]]) -> None:
        """Output tokens by key, as fetched."""
        for key, outputs in pasts.items():
            self._known[pool, key] = History.of(outputs)
            self._known.move_to_end((pool, key))
        while len(self._known) > self._most:
            self._known.popitem(last=False)

    def __len__(self) -> int:
        return len(self._known)
