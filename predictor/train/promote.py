"""Trains a candidate, compares it with the models that serve on the newest requests, and promotes it only if it is better.

    python -m predictor.train.promote ROWS.jsonl --home HEADWAY_HOME [--dry-run] [--shuffle]

Prints one JSON object, a `Verdict`.
"""

import argparse
import os
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import orjson

from broker.errors import BrokerError, ConfigError
from predictor.booster import ModelUnfit
from predictor.model_set import open_models, probe
from predictor.model_store import SHIPPED_NAME, ModelStore
from predictor.retrain import Verdict
from predictor.train import scores
from predictor.train.candidate import load_fitted, train
from predictor.train.fit import Fitted, guess, split, split_by_time
from predictor.train.rows import Floats, Rows, read_rows

FEWEST = 500  # requests to learn from
MARGIN = 0.01  # a candidate's loss must be so much smaller, as a share, and by more than one standard error
COVER = (0.8, 0.97)  # of P90 on the newest requests; outside, reservations would be wrong
TOOL_MARGIN = 0.01  # of AUROC, that the candidate may be worse
NICE = 10


def retrain(path: Path, store: ModelStore, *, ordered: bool = True, dry_run: bool = False) -> Verdict:
    """`path`: rows, of which the newest fifth is kept for the comparison. Raises ConfigError, ModelUnfit, OSError."""
    rows, (serving, in_use) = read_rows([path]), _serving(store)
    if len(rows) < FEWEST:
        raise ConfigError(f"{len(rows)} requests to learn from; at least {FEWEST} are wanted")
    with tempfile.TemporaryDirectory(prefix="headway-models-") as folder:
        candidate = Path(folder) / "candidate"
        card = train(rows, candidate, base=in_use if _load_serving(in_use) else None, ordered=ordered)
        probe(candidate)
        verdict = compare(candidate, in_use, rows=_newest(rows, ordered=ordered))
        if verdict.promoted and not dry_run:
            store.promote(store.add(candidate))
    reason = verdict.reason or ("it was only tried out" if dry_run else "")
    promoted = verdict.promoted and not dry_run
    return replace(verdict, promoted=promoted, version=card.version, serving=serving, reason=reason)


def compare(candidate: Path, serving: Path, *, rows: Rows) -> Verdict:
    """On rows that the candidate has not been trained on. Raises ConfigError, ModelUnfit for a bad candidate."""
    card, fitted = load_fitted(candidate)
    before = _load_serving(serving)
    mine, theirs = _losses(fitted, rows), _losses(before, rows)
    gain, error = float((theirs - mine).mean()), float((theirs - mine).std() / np.sqrt(len(rows)))
    cover = scores.cover(rows.output, guess(fitted, rows).p90)
    reason = ""
    if not np.isfinite(mine).all():
        reason = "its forecasts are no numbers"
    elif not COVER[0] <= cover <= COVER[1]:
        reason = f"its P90 covers {cover:.3f} of the newest requests; {COVER[0]} to {COVER[1]} are wanted"
    elif gain < max(MARGIN * float(theirs.mean()), error):
        reason = "it is not better than the models that serve"
    elif before is not None and _tool_worse(fitted, before, rows=rows):
        reason = "it tells tool calls worse than the models that serve"
    return Verdict(
        promoted=not reason,
        version=card.version,
        reason=reason,
        requests=len(rows),
        loss=round(float(mine.mean()), 3),
        serving_loss=round(float(theirs.mean()), 3),
        p90_cover=round(cover, 4),
    )


def _losses(fitted: Fitted | None, rows: Rows) -> Floats:
    """Of each request: pinball losses of P50 and P90. Without models: of the rows' own quantiles, the best constants."""
    actual = rows.output
    if fitted is None:
        p50, p90 = np.full(len(rows), np.median(actual)), np.full(len(rows), np.quantile(actual, 0.9))
    else:
        found = guess(fitted, rows)
        p50, p90 = found.p50, found.p90
    total: Floats = np.zeros(len(rows))
    for share, forecast in ((0.5, p50), (0.9, p90)):
        total = total + np.maximum(share * (actual - forecast), (share - 1) * (actual - forecast))
    return total


def _tool_worse(fitted: Fitted, before: Fitted, *, rows: Rows) -> bool:
    told = rows.take(np.isfinite(rows.tool))
    if len(np.unique(told.tool)) < 2 or "tool" not in fitted.models or "tool" not in before.models:
        return False
    mine, theirs = (
        scores.auroc(told.tool, np.asarray(each.models["tool"].predict(told.x, num_threads=1)))
        for each in (fitted, before)
    )
    return mine < theirs - TOOL_MARGIN


def _load_serving(folder: Path) -> Fitted | None:
    """None if they are damaged or of another version: then a candidate has to beat a constant."""
    try:
        open_models(folder)  # LightGBM's package would end the process on some damaged files
        return load_fitted(folder)[1]
    except (ConfigError, ModelUnfit) as error:
        sys.stderr.write(f"the models that serve cannot be compared: {error}\n")
        return None


def _serving(store: ModelStore) -> tuple[str, Path]:
    """The shipped ones where somebody has removed what served."""
    version = store.serving()
    try:
        return version, store.folder(version)
    except ConfigError:
        return SHIPPED_NAME, store.folder(SHIPPED_NAME)


def _newest(rows: Rows, *, ordered: bool) -> Rows:
    """What `train` has kept as its test part."""
    known = rows.take(np.isfinite(rows.output))
    parts = split_by_time(len(known)) if ordered else split(known.groups)
    return known.take(parts.test)


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m predictor.train.promote", description="Train, compare, promote."
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--dry-run", action="store_true", help="compare, but promote nothing")
    parser.add_argument("--shuffle", action="store_true", help="the rows are in no order of time")
    options = parser.parse_args(arguments)
    os.nice(NICE)
    try:
        ordered = not options.shuffle
        verdict = retrain(options.rows, ModelStore(options.home), ordered=ordered, dry_run=options.dry_run)
    except (BrokerError, OSError, ImportError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(orjson.dumps(asdict(verdict)).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
