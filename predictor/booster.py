"""One row through a LightGBM text model, by the library's prepared call: microseconds, without NumPy or its Python package.

Invariant: the library is given nothing but what `check` has found whole, for it ends the process on some broken files.
"""

import ctypes
import weakref
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from broker.errors import BrokerError

LIBRARY_NAMES = ("lib_lightgbm.so", "lib_lightgbm.dylib", "lib_lightgbm.dll")
# Of LightGBM's c_api.h: a prediction as the objective means it, of doubles, by all trees, on the caller's thread
NORMAL, FLOAT64, FIRST, ALL = 0, 1, 0, -1
OPTIONS = b"num_threads=1"
TREES_END = b"\nend of trees\n"
MAX_BYTES = 64 * 2**20

Row = "array[float]"
Predict = Callable[["array[float]"], float]


class ModelUnfit(BrokerError):
    """A model file is damaged, of another version of Headway, or LightGBM refuses it. The message names the file."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a model file says of itself."""

    features: tuple[str, ...]
    objective: str


@dataclass(frozen=True, slots=True)
class Library:
    """LightGBM's C functions. `fast` keeps the interpreter's lock: a call is shorter than letting go of it, and what it
    works with is used by one thread at a time."""

    slow: ctypes.CDLL
    fast: ctypes.PyDLL


@cache
def library() -> Library | None:
    """None if LightGBM is not installed, or one without the calls that are needed."""
    spec = find_spec("lightgbm")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    path = next((folder / "lib" / name for name in LIBRARY_NAMES if (folder / "lib" / name).is_file()), None)
    if path is None:
        return None
    try:
        found = Library(ctypes.CDLL(str(path)), ctypes.PyDLL(str(path)))
        _declare(found)
    except (OSError, AttributeError):
        return None
    return found


def _declare(found: Library) -> None:
    """Raises AttributeError if a function is missing."""
    pointer, number = ctypes.c_void_p, ctypes.c_int
    found.slow.LGBM_GetLastError.restype = ctypes.c_char_p
    found.slow.LGBM_BoosterLoadModelFromString.argtypes = [ctypes.c_char_p, pointer, pointer]
    found.slow.LGBM_BoosterPredictForMatSingleRowFastInit.argtypes = [
        *(pointer, number, number, number, number, ctypes.c_int32),
        *(ctypes.c_char_p, pointer),
    ]
    found.slow.LGBM_FastConfigFree.argtypes = [pointer]
    found.slow.LGBM_BoosterFree.argtypes = [pointer]
    found.fast.LGBM_BoosterPredictForMatSingleRowFast.argtypes = [pointer, pointer, pointer, pointer]


class Booster:
    """One model. `predict` may be called from any thread; freed when nobody holds it any more."""

    def __init__(self, text: bytes, *, where: str, features: tuple[str, ...]) -> None:
        """`text`: the file. `where`: its name, for messages. Raises ModelUnfit."""
        check(text, where=where, features=features)
        self.where = where
        self.predict: Predict = _prepared(text, where, columns=len(features)) or _by_package(text, where)


class _Handles:
    """What LightGBM has given out; freed with the last function that may call it, not with the Booster."""

    def __init__(self) -> None:
        self.model = ctypes.c_void_p()
        self.fast = ctypes.c_void_p()


def _prepared(text: bytes, where: str, *, columns: int) -> Predict | None:
    """By the C call; None where there is none. Raises ModelUnfit."""
    found = library()
    if found is None:
        return None
    slow, trees = found.slow, ctypes.c_int()
    handles = _Handles()
    model, fast = handles.model, handles.fast
    if slow.LGBM_BoosterLoadModelFromString(text, ctypes.byref(trees), ctypes.byref(model)):
        raise ModelUnfit(f"{where}: LightGBM refuses it: {_last_error(slow)}")
    weakref.finalize(handles, _free, found, (model, fast))
    prepare = slow.LGBM_BoosterPredictForMatSingleRowFastInit
    if prepare(model, NORMAL, FIRST, ALL, FLOAT64, columns, OPTIONS, ctypes.byref(fast)):
        raise ModelUnfit(f"{where}: LightGBM refuses it: {_last_error(slow)}")
    call = found.fast.LGBM_BoosterPredictForMatSingleRowFast
    length = ctypes.byref(ctypes.c_int64())  # always 1: the models have one class
    result, refer = ctypes.c_double, ctypes.byref

    def predict(row: "array[float]") -> float:
        address, size = row.buffer_info()
        out = result()
        if size != columns or call(handles.fast, address, length, refer(out)):
            raise ModelUnfit(f"{where}: a row of {size} features; the model has {columns}")
        return out.value

    return predict


def _free(found: Library, handles: tuple[ctypes.c_void_p, ctypes.c_void_p]) -> None:
    model, fast = handles
    if fast.value:
        found.slow.LGBM_FastConfigFree(fast)
    found.slow.LGBM_BoosterFree(model)


def _last_error(slow: ctypes.CDLL) -> str:
    said: bytes = slow.LGBM_GetLastError()
    return said.decode(errors="replace")


def _by_package(text: bytes, where: str) -> Predict:
    """By LightGBM's Python package: some 30 µs, and NumPy in memory. Raises ModelUnfit."""
    try:
        import lightgbm  # noqa: PLC0415 - seconds and 60 MB, where the library cannot be called by itself
        import numpy as np  # noqa: PLC0415
    except ImportError:
        raise ModelUnfit(f"{where}: LightGBM is not installed") from None
    try:
        model: Any = lightgbm.Booster(model_str=text.decode())
    except lightgbm.basic.LightGBMError as error:
        raise ModelUnfit(f"{where}: LightGBM refuses it: {error}") from None

    def predict(row: "array[float]") -> float:
        return float(model.predict(np.frombuffer(row)[None, :], num_threads=1)[0])

    return predict


def check(text: bytes, *, where: str, features: tuple[str, ...]) -> Header:
    """Whether a file is a whole model over these features, without asking the library. Raises ModelUnfit."""
    if len(text) > MAX_BYTES:
        raise ModelUnfit(f"{where}: {len(text)} bytes; a model has at most {MAX_BYTES}")
    head, blank, trees = text.partition(b"\n\n")
    said = dict(line.partition("=")[::2] for line in head.decode(errors="replace").splitlines())
    if not blank or not head.startswith(b"tree\n") or not said.get("version", "").startswith("v"):
        raise ModelUnfit(f"{where}: not a LightGBM text model")
    if said.get("num_class") != "1":
        raise ModelUnfit(f"{where}: {said.get('num_class')} classes; one is wanted")
    if tuple(said.get("feature_names", "").split()) != features:
        raise ModelUnfit(f"{where}: trained on other features than this version's; train again")
    try:
        size = sum(map(int, said.get("tree_sizes", "").split()))
    except ValueError:
        raise ModelUnfit(f"{where}: damaged: the sizes of its trees cannot be read") from None
    rest = trees.lstrip(b"\n")
    if not size or b"\n" + rest[size : size + len(TREES_END) - 1] != TREES_END:
        raise ModelUnfit(f"{where}: damaged or cut off: its trees are not as large as it says")
    return Header(features, said.get("objective", ""))
