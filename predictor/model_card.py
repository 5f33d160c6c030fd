"""The card of a folder of models: which files, trained on which features, from what, how calibrated. One JSON file.

models/card.json     this
models/<name>.txt    LightGBM's text format
models/lexicon.json  see lexicon.py
"""

import hashlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from broker.errors import ConfigError
from predictor.features import FEATURES, VERSION
from predictor.length import Calibration

CARD = "card.json"


@dataclass(frozen=True, slots=True)
class Source:
    """What a model has learned from."""

    name: str
    licence: str
    rows: int


@dataclass(frozen=True, slots=True)
class Card:
    """`files`: "p50", "p90" (logarithm of 1 + tokens), "mean" (tokens), "tool" (probability) and what others add."""

    version: str
    files: dict[str, str]
    features: tuple[str, ...] = FEATURES
    features_version: int = VERSION
    calibration: Calibration = field(default_factory=Calibration)
    trained_on: tuple[Source, ...] = ()
    scores: dict[str, float] = field(default_factory=dict)  # on held-out requests, by name
    sha256: dict[str, str] = field(default_factory=dict)  # of each file; `write_card` fills it in


def read_card(folder: Path) -> Card:
    """Raises ConfigError if there is none, if it is malformed, or if its features are not those of this version."""
    path = folder / CARD
    try:
        found = orjson.loads(path.read_bytes())
        card = _card(found)
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: not the card of a model folder: {error!r}") from error
    if card.features != FEATURES or card.features_version != VERSION:
        raise ConfigError(f"{path}: trained on other features than this version's; train again")
    missing = [name for name in card.files.values() if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"{path}: {', '.join(missing)} missing beside it")
    return card


def write_card(folder: Path, card: Card) -> None:
    """The files that it names must be there already. Raises OSError."""
    digests = {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in card.files.values()}
    text = orjson.dumps(asdict(replace(card, sha256=digests)), option=orjson.OPT_INDENT_2)
    (folder / CARD).write_bytes(text + b"\n")


def _card(found: dict[str, Any]) -> Card:
    return Card(
        version=str(found["version"]),
        files={str(name): str(file) for name, file in found["files"].items()},
        features=tuple(found["features"]),
        features_version=int(found["features_version"]),
        calibration=Calibration(**found["calibration"]),
        trained_on=tuple(Source(**source) for source in found["trained_on"]),
        scores={str(name): float(score) for name, score in found["scores"].items()},
        sha256={str(file): str(digest) for file, digest in found.get("sha256", {}).items()},
    )
