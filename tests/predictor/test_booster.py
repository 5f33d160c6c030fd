"""The C call says what LightGBM says, and what LightGBM would choke on never reaches it."""

import threading
from array import array

import numpy as np
import pytest

from predictor import booster
from predictor.booster import Booster, ModelUnfit, check
from predictor.features import FEATURES
from tests.predictor import small_models


@pytest.fixture(scope="module")
def text() -> bytes:
    return small_models.booster(50.0).model_to_string().encode()


def rows(n: int) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    return np.random.default_rng(7).random((n, len(FEATURES)))


def test_one_row_is_predicted_as_lightgbm_predicts_many(text: bytes) -> None:
    mine, x = Booster(text, where="m.txt", features=FEATURES), rows(50)
    theirs = np.asarray(small_models.booster(50.0).predict(x, num_threads=1))
    assert [mine.predict(array("d", row)) for row in x] == pytest.approx(list(theirs), rel=1e-12)


def test_without_the_c_call_the_package_predicts_the_same(
    text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = array("d", rows(1)[0])
    fast = Booster(text, where="m.txt", features=FEATURES).predict(row)
    monkeypatch.setattr(booster, "library", lambda: None)
    assert Booster(text, where="m.txt", features=FEATURES).predict(row) == pytest.approx(fast, rel=1e-12)


def test_threads_do_not_get_each_others_answers(text: bytes) -> None:
    model, x = Booster(text, where="m.txt", features=FEATURES), rows(8)
    right = [model.predict(array("d", row)) for row in x]
    wrong: list[int] = []

    def ask(at: int) -> None:
        row = array("d", x[at])
        wrong.extend(at for _ in range(3000) if model.predict(row) != right[at])

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(right)) > 4
    assert wrong == []


def test_a_row_of_another_length_is_refused(text: bytes) -> None:
    model = Booster(text, where="m.txt", features=FEATURES)
    with pytest.raises(ModelUnfit, match=r"m\.txt"):
        model.predict(array("d", [0.0] * (len(FEATURES) - 1)))


def test_every_cut_of_the_file_is_found_before_the_library_sees_it(text: bytes) -> None:
    whole = text.index(b"end of trees") + len(b"end of trees\n")
    check(text[:whole], where="m.txt", features=FEATURES)
    for size in range(0, whole - 1, 97):
        with pytest.raises(ModelUnfit, match=r"m\.txt"):
            check(text[:size], where="m.txt", features=FEATURES)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"tree_sizes=", b"tree_sizes=9"),
        (b"tree_sizes=", b"tree_sizes=x"),
        (b"num_class=1", b"num_class=3"),
        (b"feature_names=", b"feature_names=other "),
        (b"version=v4", b"version=?"),
    ],
)
def test_a_header_that_lies_is_refused(text: bytes, old: bytes, new: bytes) -> None:
    with pytest.raises(ModelUnfit):
        check(text.replace(old, new, 1), where="m.txt", features=FEATURES)
