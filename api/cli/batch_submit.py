"""Submits a batch file so that it can be broken off and repeated at any point: by Ctrl-C, a crash, an API restart.

What has been done so far is kept in a small file in HEADWAY_HOME, by the hash of the input and the options. The batch
itself is created under an idempotency key that is written down before.
"""

import functools
import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import orjson

from api.cli.batch_input import Wishes, convert
from api.cli.client import Client, NoAnswer, RequestRefused, Unavailable
from broker.client_settings import ClientSettings
from broker.errors import ConfigError

T = TypeVar("T")
PATIENCE_S = 300.0  # how long nobody may answer
UPLOAD_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be submitted. `endpoint` "": as the file says. `parameters`: for the engine, in plain lines."""

    path: Path
    model: str | None = None
    service_class: str = "P2"
    endpoint: str = ""
    window: str = "24h"
    parameters: dict[str, Any] = field(default_factory=dict)

    def fingerprint(self) -> str:
        """Of the content and of everything that makes another batch of it. Raises ConfigError."""
        options = [self.model, self.service_class.upper(), self.endpoint, self.window]
        digest = hashlib.sha256(orjson.dumps([*options, self.parameters], option=orjson.OPT_SORT_KEYS))
        try:
            with self.path.open("rb") as source:
                while chunk := source.read(1 << 20):
                    digest.update(chunk)
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read: {error.strerror}") from None
        return digest.hexdigest()[:32]


@dataclass(slots=True)
class Steps:
    """How far a submission is."""

    key: str = ""
    file_id: str = ""
    endpoint: str = ""
    batch_id: str = ""


class Notes:
    """The file that holds the steps; written in one go."""

    def __init__(self, home: Path, fingerprint: str) -> None:
        self._path = home / "batches" / f"{fingerprint}.json"

    def read(self) -> Steps:
        try:
            return Steps(**orjson.loads(self._path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return Steps()

    def write(self, steps: Steps) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(f".{os.getpid()}")
        new.write_bytes(orjson.dumps(asdict(steps)))
        new.replace(self._path)


class Patient:
    """A client that waits for a Headway that is being restarted. `say` is told about it once."""

    def __init__(self, settings: ClientSettings, *, say: Callable[[str], None]) -> None:
        self._settings = settings
        self.say = say

    def ask(self, question: Callable[[Client], T]) -> T:
        """Repeats the question while nobody answers. Raises RequestRefused, and NoAnswer after PATIENCE_S."""
        give_up, delay_s = time.monotonic() + PATIENCE_S, 0.2
        with Client(self._settings):
            pass  # that there is no such Headway at all is said at once
        while True:
            try:
                with Client(self._settings) as client:  # anew each time: it may have moved to another port
                    return question(client)
            except (NoAnswer, Unavailable, ConfigError) as error:
                if time.monotonic() > give_up:
                    raise
                if delay_s > 1:
                    self.say(f"waiting for Headway: {error}")
            time.sleep(delay_s)
            delay_s = min(delay_s * 2, 5.0)

    def call(self, method: str, path: str, **options: Any) -> Any:
        return self.ask(lambda client: client.call(method, path, **options))


def submit(
    patient: Patient, order: Order, *, notes: Notes, again: bool = False
) -> tuple[dict[str, Any], bool]:
    """The batch's document, and whether it was there before. Raises RequestRefused, NoAnswer, ConfigError."""
    steps = Steps() if again else notes.read()
    if steps.batch_id:
        with suppress(RequestRefused):  # another Headway, or expired: begin anew
            return patient.call("GET", f"/v1/batches/{steps.batch_id}"), True
        steps = Steps()
    if not steps.key:
        steps.key = os.urandom(16).hex()
        notes.write(steps)
    if steps.file_id:
        with suppress(RequestRefused):
            return _create(patient, order, steps=steps, notes=notes), False
    _upload(patient, order, steps=steps)
    notes.write(steps)
    return _create(patient, order, steps=steps, notes=notes), False


def _upload(patient: Patient, order: Order, *, steps: Steps) -> None:
    model = functools.cache(lambda: order.model or patient.ask(Client.first_model))
    with order.path.open("rb") as source, tempfile.TemporaryFile() as target:
        wishes = Wishes(model, order.endpoint, order.parameters)
        done = convert(source, target, wishes=wishes)
        steps.endpoint = done.endpoint
        if done.mute:
            patient.say(f"no prompt and no messages in line {', '.join(map(str, done.mute))}: it will fail")

        def send(client: Client) -> Any:
            target.seek(0)
            form = {"files": {"file": (order.path.name, target)}, "data": {"purpose": "batch"}}
            return client.call("POST", "/v1/files", timeout=UPLOAD_TIMEOUT_S, **form)

        steps.file_id = patient.ask(send)["id"]


def _create(patient: Patient, order: Order, *, steps: Steps, notes: Notes) -> dict[str, Any]:
    asked = {"input_file_id": steps.file_id, "endpoint": steps.endpoint, "completion_window": order.window}
    headers = {"Idempotency-Key": steps.key, "X-Headway-Class": order.service_class}
    batch: dict[str, Any] = patient.call("POST", "/v1/batches", json=asked, headers=headers)
    steps.batch_id = batch["id"]
    notes.write(steps)
    return batch
