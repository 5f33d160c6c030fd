"""What a worker says about itself with every heartbeat."""

import time
from dataclasses import dataclass, replace

from broker.fleet import WorkerRecord
from workers.engine import Engine
from workers.pull import Puller
from workers.recent import LATELY_S, MINUTE_S, Recent


@dataclass(frozen=True, slots=True)
class Description:
    """`first`: the record with what stays as it is. `dump` runs in the heartbeat's thread: it reads plain attributes only."""

    first: WorkerRecord
    puller: Puller
    recent: Recent
    engine: Engine

    def dump(self) -> bytes:
        now, puller, recent = time.monotonic(), self.puller, self.recent
        ledger = puller.ledger
        busy, load = ledger.busy, recent.watch.seen(now=now)
        return replace(
            self.first,
            engine=self.engine.name,  # another server may have taken its address
            slots=max(ledger.slots, busy),  # more run than are trusted, where that has fallen
            busy_slots=busy,
            reserved_slots=ledger.reserved_slots(now=now),
            prefill_tokens=ledger.prefill_tokens(now=now),
            state=puller.state,
            claimed=puller.claimed,
            kv_used_share=recent.kv_share(now=now),
            kv_total_tokens=ledger.plan.kv_tokens or load.kv_total_tokens,
            prompt_tokens=puller.prompt_tokens,
            cached_tokens=puller.cached_tokens,
            predicted_s=round(ledger.predicted_s, 2),
            jobs=ledger.jobs(),
            tpot_s=recent.tpot_s(now=now),
            lately=recent.means(LATELY_S, now=now),
            minute=recent.means(MINUTE_S, now=now),
        ).dump()
