"""Versions of the models on disk: which one serves, which served before. Below HEADWAY_HOME:

predictor/versions/<version>/   a folder of models each (model_card.py), complete before it has its name
predictor/current.json          {"version": …, "before": [versions that served, the last one first]}

Without `current.json` the models that ship with Headway serve; they are the version "shipped" and cannot be removed.
Written by the training chore and the command line, read by every API process, which looks at `mark` about once a second.
"""

import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from broker.errors import ConfigError
from predictor.model_card import CARD, Card, read_card
from predictor.model_set import SHIPPED

log = logging.getLogger("headway.predictor")
SHIPPED_NAME = "shipped"
KEEP = 5  # versions, the serving one and those that served last among them
VERSION_NAME = re.compile(r"[0-9a-z][0-9a-z._-]{0,63}")


@dataclass(frozen=True, slots=True)
class ModelStore:
    """Of one HEADWAY_HOME."""

    home: Path

    @property
    def _versions(self) -> Path:
        return self.home / "predictor" / "versions"

    @property
    def _pointer(self) -> Path:
        return self.home / "predictor" / "current.json"

    def mark(self) -> tuple[int, int]:
        """Differs after every promotion and rollback; costs one look at the file system."""
        try:
            found = self._pointer.stat()
        except OSError:
            return (0, 0)
        return (found.st_mtime_ns, found.st_ino)

    def folder(self, version: str) -> Path:
        """Raises ConfigError if it has no such version."""
        if version == SHIPPED_NAME:
            return SHIPPED
        folder = self._versions / version
        if VERSION_NAME.fullmatch(version) is None or not (folder / CARD).is_file():
            raise ConfigError(
                f"there is no version {version!r} of the models; there are: {', '.join(self.names())}"
            )
        return folder

    def names(self) -> list[str]:
        """Newest first; "shipped" is the oldest."""
        if not self._versions.is_dir():
            return [SHIPPED_NAME]
        found = [path.name for path in self._versions.iterdir() if (path / CARD).is_file()]
        return [*sorted(found, reverse=True), SHIPPED_NAME]

    def serving(self) -> str:
        """The version that serves."""
        return str(self._read()["version"])

    def before(self) -> list[str]:
        """What served before it, the last one first, as far as it is still there."""
        known = self.names()
        return [version for version in self._read()["before"] if version in known]

    def card(self, version: str) -> Card:
        """Raises ConfigError."""
        return read_card(self.folder(version))

    def add(self, candidate: Path) -> str:
        """Takes a complete folder over, by its card's version. Raises ConfigError, OSError."""
        version = read_card(candidate).version
        if VERSION_NAME.fullmatch(version) is None or version == SHIPPED_NAME:
            raise ConfigError(f"{version!r} is no name for a version (64 of a-z, 0-9, '.', '_', '-')")
        target = self._versions / version
        if target.exists():
            raise ConfigError(f"there is a version {version!r} already")
        self._versions.mkdir(parents=True, exist_ok=True)
        coming = self._versions / f".{version}.{os.getpid()}"
        shutil.copytree(candidate, coming)
        coming.replace(target)
        return version

    def promote(self, version: str) -> None:
        """It serves from now on. Raises ConfigError, OSError."""
        self.folder(version)
        serving = self.serving()
        before = [serving, *self.before()] if serving != version else self.before()
        self._write({"version": version, "before": _distinct(before, but=version)[:KEEP]})
        self._prune()

    def rollback(self) -> str:
        """Back to what served before; returns it. The version that is left stays, to be promoted again. Raises ConfigError."""
        before = self.before()
        if not before:
            raise ConfigError("nothing served before the models that serve now")
        self._write({"version": before[0], "before": before[1:]})
        return before[0]

    def trained_at(self) -> float:
        """When the own traffic was last trained on, whatever came of it: seconds since the epoch, 0 for never."""
        try:
            return self._trained.stat().st_mtime
        except OSError:
            return 0.0

    def trained_to(self) -> int:
        """Up to which outcome that was: its milliseconds in the stream."""
        try:
            return int(self._trained.read_text())
        except (OSError, ValueError):
            return 0

    def note_training(self, to_ms: int) -> None:
        """Raises OSError."""
        self._trained.parent.mkdir(parents=True, exist_ok=True)
        self._trained.write_text(str(to_ms))

    @property
    def _trained(self) -> Path:
        return self.home / "predictor" / "trained"

    def _prune(self) -> None:
        """Drops the oldest versions that neither serve nor served lately."""
        kept = {self.serving(), SHIPPED_NAME, *self.before()[: KEEP - 1]}
        spare = [version for version in self.names() if version not in kept]
        for version in spare[max(0, KEEP + 1 - len(kept)) :]:
            shutil.rmtree(self._versions / version, ignore_errors=True)

    def _read(self) -> dict[str, Any]:
        try:
            found = orjson.loads(self._pointer.read_bytes())
            return {"version": str(found["version"]), "before": [str(version) for version in found["before"]]}
        except FileNotFoundError:
            return {"version": SHIPPED_NAME, "before": []}
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s cannot be read, the shipped models serve: %r", self._pointer, error)
            return {"version": SHIPPED_NAME, "before": []}

    def _write(self, document: dict[str, Any]) -> None:
        self._pointer.parent.mkdir(parents=True, exist_ok=True)
        coming = self._pointer.with_suffix(f".{os.getpid()}")
        coming.write_bytes(orjson.dumps(document))
        coming.replace(self._pointer)


def _distinct(versions: list[str], *, but: str) -> list[str]:
    return [version for version in dict.fromkeys(versions) if version != but]
