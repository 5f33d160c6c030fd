"""Training, and the promotion of what is better, in a process of its own: LightGBM and NumPy are large, and a model that ends
its process must end nothing else. Called by the training chore and by `headway predictor train`; the work is in
`train/promote.py`.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import orjson

from broker.errors import ConfigError

PATIENCE_S = 1500.0
NEW_OUTCOMES = 500  # since the last training; fewer would hardly change anything
MODULE = "predictor.train.promote"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`loss`: pinball loss of P50 and P90 together, tokens a request. `reason`: why it was not promoted."""

    promoted: bool
    version: str
    reason: str = ""
    serving: str = ""
    requests: int = 0  # that both were compared on
    loss: float = 0.0
    serving_loss: float = 0.0
    p90_cover: float = 0.0


def run(path: Path, home: Path, *, ordered: bool = True, dry_run: bool = False) -> Verdict:
    """In a process of its own. Raises ConfigError with its last words if it failed."""
    command = [sys.executable, "-m", MODULE, str(path), "--home", str(home)]
    command += [*(["--dry-run"] if dry_run else []), *([] if ordered else ["--shuffle"])]
    root = Path(__file__).resolve().parents[1]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False, cwd=root)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"training took longer than {PATIENCE_S:g} s") from None
    if ended.returncode:
        lines = ended.stderr.decode(errors="replace").strip().splitlines()
        raise ConfigError(lines[-1] if lines else f"training ended with {ended.returncode}")
    return Verdict(**orjson.loads(ended.stdout))
