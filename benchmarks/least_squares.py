"""Robust least squares on relative errors in plain Python, for functions of a handful of positive constants."""

import math
from collections.abc import Callable, Sequence

SOFT = 0.1  # residuals above about 10 % weigh less and less (soft L1)
ITERATIONS = 80
STEP = 1e-4  # of the numerical derivative, in the constant's logarithm
GOOD_ENOUGH = 1e-7  # relative gain of an iteration below which there are no more

Row = tuple[float, ...]
Function = Callable[[Sequence[float], Row], float]


def solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination with pivoting. Both arguments are overwritten."""
    size = len(right)
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(matrix[row][column]))
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        right[column], right[pivot] = right[pivot], right[column]
        for row in range(column + 1, size):
            factor = matrix[row][column] / matrix[column][column]
            right[row] -= factor * right[column]
            for at in range(column, size):
                matrix[row][at] -= factor * matrix[column][at]
    for row in reversed(range(size)):
        right[row] -= sum(matrix[row][at] * right[at] for at in range(row + 1, size))
        right[row] /= matrix[row][row]
    return right


def _residuals(function: Function, logs: list[float], rows: Sequence[tuple[Row, float]]) -> list[float]:
    constants = [math.exp(value) for value in logs]
    return [math.log(function(constants, row) / measured) for row, measured in rows]


def _loss(residuals: list[float]) -> float:
    return sum(math.sqrt(1 + (r / SOFT) ** 2) - 1 for r in residuals)


def fit(function: Function, start: Sequence[float], rows: Sequence[tuple[Row, float]]) -> list[float]:
    """Constants that make `function(constants, row)` come close to each row's measured value.

    Levenberg-Marquardt on logarithms, so constants stay positive and an error counts by its share of the value.
    """
    logs, damping = [math.log(value) for value in start], 1e-3
    residuals = _residuals(function, logs, rows)
    loss = _loss(residuals)
    for _ in range(ITERATIONS):
        matrix, right = _normal_equations(function, logs, rows, residuals)
        damped = [
            [v * (1 + damping) if i == j else v for j, v in enumerate(row)] for i, row in enumerate(matrix)
        ]
        tried = [
            log + max(-1.0, min(1.0, step)) for log, step in zip(logs, solve(damped, right), strict=True)
        ]
        found = _residuals(function, tried, rows)
        if (new := _loss(found)) >= loss:
            damping *= 10
            if damping > 1e8:
                break
            continue
        gain, logs, residuals, loss, damping = (loss - new) / loss, tried, found, new, damping / 5
        if gain < GOOD_ENOUGH:
            break
    return [math.exp(value) for value in logs]


def _normal_equations(
    function: Function, logs: list[float], rows: Sequence[tuple[Row, float]], residuals: list[float]
) -> tuple[list[list[float]], list[float]]:
    slopes = []
    for at in range(len(logs)):
        moved = [value + STEP * (i == at) for i, value in enumerate(logs)]
        slopes.append(
            [(b - a) / STEP for a, b in zip(residuals, _residuals(function, moved, rows), strict=True)]
        )
    weights = [1 / math.sqrt(1 + (r / SOFT) ** 2) for r in residuals]
    size = range(len(logs))
    matrix = [
        [
            sum(w * a * b for w, a, b in zip(weights, slopes[i], slopes[j], strict=True)) + 1e-12 * (i == j)
            for j in size
        ]
        for i in size
    ]
    right = [-sum(w * s * r for w, s, r in zip(weights, slopes[i], residuals, strict=True)) for i in size]
    return matrix, right
