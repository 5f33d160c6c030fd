"""What an engine is expected to count, by how it has counted."""

from workers.accounts import Ratio


def test_what_is_expected_of_an_engine_follows_how_it_has_counted_lately() -> None:
    ratio = Ratio()
    assert ratio.of(100) == 100
    for counted, expected in (
        (6, 4),
        (0, 50),
        (50, 0),
    ):  # one short prompt says little, a wrong count nothing
        ratio.learn(counted, expected=expected)
    assert ratio.of(100) == 100
    for _ in range(1000):
        ratio.learn(30, expected=20)
    assert ratio.of(100) == 150
    for _ in range(1000):
        ratio.learn(10, expected=20)
    assert ratio.of(100) == 50
