"""A folder of models, opened: its card, and a booster for each file it names. Immutable: a reload makes another one."""

import hashlib
import math
import subprocess
import sys
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from predictor.booster import Booster, ModelUnfit
from predictor.features import FEATURES, Features
from predictor.length import Calibration, Lengths, Raw, lengths
from predictor.model_card import Card, read_card
from predictor.tool_call import likelihood

LENGTHS = ("p50", "p90", "mean")
PROBE_S = 30.0
SHIPPED = Path(str(files("predictor").joinpath("models")))
_PROBE = "import sys; from pathlib import Path; from predictor.model_set import open_models, try_out; \
try_out(open_models(Path(sys.argv[1])))"


@dataclass(frozen=True, slots=True)
class ModelSet:
    """`boosters` by the names of the card."""

    card: Card
    boosters: Mapping[str, Booster] = field(repr=False)

    @property
    def version(self) -> str:
        return self.card.version

    @property
    def calibration(self) -> Calibration:
        return self.card.calibration

    def lengths(self, row: "array[float]", features: Features) -> Lengths:
        """`row`: `features.vector()`. Raises ModelUnfit."""
        boosters = self.boosters
        raw = Raw(*(boosters[name].predict(row) for name in LENGTHS))
        return lengths(raw, features, calibration=self.card.calibration)

    def tool_call(self, row: "array[float]", features: Features) -> float:
        """Probability that the answer calls a tool. Raises ModelUnfit."""
        booster = self.boosters.get("tool")
        asked = booster is not None and features["tools"] > 0
        return likelihood(booster.predict(row) if booster and asked else math.nan, features)


def open_models(folder: Path) -> ModelSet:
    """Raises ModelUnfit, ConfigError; never gives LightGBM a file that the card's checksum does not vouch for."""
    card = read_card(folder)
    missing = [name for name in LENGTHS if name not in card.files]
    if missing:
        raise ModelUnfit(f"{folder}: has no model for {', '.join(missing)}")
    return ModelSet(card, {name: _open(folder / file, card) for name, file in card.files.items()})


def _open(path: Path, card: Card) -> Booster:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ModelUnfit(f"{path} cannot be read: {error}") from error
    if hashlib.sha256(text).hexdigest() != card.sha256.get(path.name):
        raise ModelUnfit(f"{path}: is not the file that the card was written for (its SHA-256 differs)")
    return Booster(text, where=str(path), features=FEATURES)


def try_out(models: ModelSet) -> None:
    """One row through every model. Raises ModelUnfit for an answer that is no number."""
    for name, booster in models.boosters.items():
        for row in (array("d", [0.0]) * len(FEATURES), array("d", [1e6]) * len(FEATURES)):
            if not math.isfinite(booster.predict(row)):
                raise ModelUnfit(f"{booster.where}: the model {name!r} answers with no number")


def probe(folder: Path) -> None:
    """As `open_models` and `try_out`, in a process of its own, whose end is no harm. Raises ModelUnfit."""
    command = [sys.executable, "-c", _PROBE, str(folder)]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=PROBE_S, check=False, cwd=_root())
    except subprocess.TimeoutExpired:
        raise ModelUnfit(f"{folder}: was not loaded within {PROBE_S:g} s") from None
    if ended.returncode:
        lines = ended.stderr.decode(errors="replace").strip().splitlines()
        raise ModelUnfit(f"{folder}: {lines[-1] if lines else f'the process ended with {ended.returncode}'}")


def _root() -> Path:
    """Where `predictor` is imported from, for a child that would not find it otherwise."""
    return Path(__file__).resolve().parents[1]
