"""A linear law with coefficients at or above 0, fitted to one observation after the other. Pure.

Least squares on relative residuals, half as much being as far off as twice; Huber's weights keep an outlier from moving it,
and observations fade, so that it follows a change. What is assumed at the start stays in as so many observations more: a
coefficient of which nothing tells goes back there, and not anywhere. Source: Huber, Robust Statistics (1981), 7.8.

The sums are kept, not the inverse of their matrix: recursive least squares winds up where a coefficient is not seen, and
its corrections do not go together with bounds (tried on runs of the embedded engine).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

FORGET = 0.99  # an observation 100 later weighs a third
NOISE = 0.04  # variance of a relative residual: 20 %
HUBER = 2.5  # residuals, in mean absolute residuals, up to which an observation counts in full
SMOOTH = 0.05  # weight of an observation in the mean absolute residual
FIRST_SPREAD = 1.0  # the first observations may be far from what was assumed
LEAST_SPREAD = 0.02

Vector = tuple[float, ...]
Matrix = tuple[Vector, ...]


@dataclass(frozen=True, slots=True)
class OnlineFit:
    """Immutable: `learn` makes another one. `squares` and `products`: faded sums of x x' and of x y."""

    theta: Vector
    assumed: Vector
    doubts: Vector = field(repr=False)  # variances of what is assumed
    squares: Matrix = field(repr=False)
    products: Vector = field(repr=False)
    spread: float = FIRST_SPREAD

    @classmethod
    def start(cls, theta: Sequence[float], *, spreads: Sequence[float]) -> "OnlineFit":
        """`spreads`: how far each coefficient may well be from what is assumed (a standard deviation)."""
        nothing = (0.0,) * len(theta)
        doubts = tuple(spread * spread for spread in spreads)
        return cls(tuple(theta), tuple(theta), doubts, (nothing,) * len(theta), nothing)

    def value(self, terms: Sequence[float]) -> float:
        return _dot(self.theta, terms)

    def learn(self, terms: Sequence[float], value: float, *, least: float) -> "OnlineFit":
        """One more observation; a value below `least` counts as that near to it."""
        guess = _dot(self.theta, terms)
        scale = math.sqrt(max(guess, least) * max(value, least))
        x, residual = [term / scale for term in terms], (value - guess) / scale
        most = HUBER * self.spread
        weight = min(1.0, most / abs(residual)) if residual else 1.0
        squares = tuple(
            [
                tuple([FORGET * old + weight * a * b for old, b in zip(row, x, strict=True)])
                for row, a in zip(self.squares, x, strict=True)
            ]
        )
        y = weight * value / scale
        products = tuple([FORGET * old + a * y for old, a in zip(self.products, x, strict=True)])
        spread = self.spread + SMOOTH * (min(abs(residual), most) - self.spread)
        fitted = replace(self, squares=squares, products=products, spread=max(spread, LEAST_SPREAD))
        return replace(fitted, theta=fitted._solved())

    def _solved(self) -> Vector:
        """Coefficients that would be below 0 are taken to be 0, the worst of them first."""
        free = list(range(len(self.theta)))
        while free:
            found = _solve(*self._equations(free))
            worst = min(range(len(free)), key=found.__getitem__)
            if found[worst] >= 0:
                values = dict(zip(free, found, strict=True))
                return tuple([values.get(i, 0.0) for i in range(len(self.theta))])
            free.pop(worst)
        return (0.0,) * len(self.theta)

    def _equations(self, free: Sequence[int]) -> tuple[list[list[float]], list[float]]:
        """Of the coefficients that are free, with what is assumed among the observations."""
        held = [NOISE / doubt for doubt in self.doubts]
        matrix = [[self.squares[i][j] + (held[i] if i == j else 0.0) for j in free] for i in free]
        return matrix, [self.products[i] + held[i] * self.assumed[i] for i in free]

    def document(self) -> dict[str, Any]:
        """For JSON; see `read_fit`."""
        return {name: getattr(self, name) for name in OnlineFit.__dataclass_fields__}


def read_fit(found: dict[str, Any], *, n: int) -> OnlineFit:
    """Raises KeyError, TypeError, ValueError for anything but a `document` of n coefficients."""
    squares = tuple(_numbers(row, n) for row in found["squares"])
    if len(squares) != n:
        raise ValueError(f"{n} rows are wanted")
    theta, assumed, doubts, products = (
        _numbers(found[name], n) for name in ("theta", "assumed", "doubts", "products")
    )
    (spread,) = _numbers([found["spread"]], 1)
    return OnlineFit(theta, assumed, doubts, squares, products, spread)


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """By Gaussian elimination; no pivots are looked for, as the matrix is positive definite."""
    n = len(right)
    for i in range(n):
        pivot = matrix[i]
        for j in range(i + 1, n):
            factor = matrix[j][i] / pivot[i]
            if factor:
                matrix[j] = [a - factor * b for a, b in zip(matrix[j], pivot, strict=True)]
                right[j] -= factor * right[i]
    found = [0.0] * n
    for i in range(n - 1, -1, -1):
        found[i] = (right[i] - _dot(matrix[i][i + 1 :], found[i + 1 :])) / matrix[i][i]
    return found


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum([a * b for a, b in zip(one, other, strict=True)])


def _numbers(values: Sequence[float], n: int) -> Vector:
    numbers = tuple(map(float, values))
    if len(numbers) != n or not all(map(math.isfinite, numbers)):
        raise ValueError(f"{n} numbers are wanted")
    return numbers
