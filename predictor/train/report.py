"""A page that shows how good a folder of models is on given requests: scores, calibration, residuals, importance."""

from html import escape

import numpy as np
from numpy.typing import NDArray

from predictor.features import FEATURES
from predictor.model_card import Card
from predictor.train import scores
from predictor.train.fit import Fitted, Guesses, guess, judged
from predictor.train.plots import Line, Range, bars, lines, ranges
from predictor.train.rows import Floats, Rows

BINS = 10
FEWEST = 20  # requests of a type, for its residuals to say something
SHOWN_FEATURES = 20
RIGHT_COVER, LEAST_COVER = 0.9, 0.5
STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:44em;margin:2em auto;padding:0 1.5em;color:#222}h2{margin-top:2em}"
    "table{border-collapse:collapse}th,td{padding:3px 12px 3px 0;border-bottom:1px solid #e4e7eb}"
    "th{font-weight:normal;text-align:left}td{text-align:right}svg{max-width:100%;height:auto}.small{font-size:13px;color:#666}"
)
TELLS = {
    "within20": "output within ±20 % of the forecast's P50 (share of requests)",
    "tau": "Kendall's tau of forecast and actual order (1 perfect, 0 chance)",
    "mae": "mean absolute error of P50, tokens",
    "mae_of_median": "the same of a constant, their median",
    "p90_cover": "outputs within P90 (0.9 is right)",
    "sum_error": "error of sums over 100 requests (median)",
    "bias": "error of the sum over all",
    "requests": "requests",
}


def report(card: Card, fitted: Fitted, *, rows: Rows) -> str:
    """HTML. `rows`: requests that the models have not been trained on, or the scores flatter."""
    known = rows.take(np.isfinite(rows.output))
    if not len(known):
        return _page(card, ["<p>No request with a known output.</p>"])
    found = guess(fitted, known)
    parts = [
        _scores(judged(fitted, known)),
        "<h2>Calibration</h2><p>Requests in ten parts by their forecast: what was forecast, and what came.</p>",
        lines(
            _calibration(known.output, found), across="median of P50 forecasts, tokens", up="actual tokens"
        ),
        "<h2>Coverage of P90</h2><p>0.9 in every part is right.</p>",
        lines(
            _coverage(known.output, found),
            across="median of P90 forecasts, tokens",
            up="share within",
            least_up=LEAST_COVER,
        ),
        "<h2>Residuals by prompt type</h2><p>Actual over forecast (P50): 10th, 50th and 90th percentile; at 1 both agree.</p>",
        ranges(_residuals(known, found), span=(0.0, 4.0), unit="×", right=1.0),
        "<h2>Features</h2><p>Share of the gain in the P50 model, in percent.</p>",
        bars(_importance(fitted), unit=" %"),
        *_tools(fitted, rows),
    ]
    return _page(card, parts)


def _scores(found: dict[str, float]) -> str:
    rows = "".join(
        f"<tr><th>{escape(TELLS[name])}</th><td>{value:.4g}</td></tr>" for name, value in found.items()
    )
    return f"<h2>Scores</h2><table>{rows}</table>"


def _calibration(actual: Floats, found: Guesses) -> list[Line]:
    parts = _parts(found.p50)
    middle = [(float(np.median(found.p50[at])), float(np.median(actual[at]))) for at in parts]
    upper = [(float(np.median(found.p50[at])), float(np.quantile(actual[at], 0.9))) for at in parts]
    most = max(x for x, _ in middle)
    right = Line("where forecast and median agree", [(0.0, 0.0), (most, most)], dashed=True)
    return [Line("actual median", middle), Line("actual 90th percentile", upper), right]


def _coverage(actual: Floats, found: Guesses) -> list[Line]:
    parts = _parts(found.p90)
    points = [(float(np.median(found.p90[at])), scores.cover(actual[at], found.p90[at])) for at in parts]
    return [
        Line("share of outputs within P90", points),
        Line(f"{RIGHT_COVER:g}", [(0.0, RIGHT_COVER), (points[-1][0], RIGHT_COVER)], dashed=True),
    ]


def _parts(forecast: Floats) -> list[NDArray[np.intp]]:
    return [part for part in np.array_split(np.argsort(forecast, kind="stable"), BINS) if len(part)]


def _residuals(rows: Rows, found: Guesses) -> list[Range]:
    ratio, shown = rows.output / found.p50, list[Range]()
    for kind in np.unique(rows.kinds):
        mine = ratio[rows.kinds == kind]
        if len(mine) >= FEWEST:
            low, middle, high = np.quantile(mine, (0.1, 0.5, 0.9))
            shown.append(Range(f"{kind or 'unknown'} ({len(mine)})", float(low), float(middle), float(high)))
    return shown


def _importance(fitted: Fitted) -> list[tuple[str, float]]:
    gains = fitted.models["p50"].feature_importance("gain")
    total = float(gains.sum()) or 1.0
    ordered = sorted(zip(FEATURES, gains, strict=True), key=lambda pair: -pair[1])
    return [(name, 100.0 * float(gain) / total) for name, gain in ordered[:SHOWN_FEATURES] if gain > 0]


def _tools(fitted: Fitted, rows: Rows) -> list[str]:
    told = rows.take(np.isfinite(rows.tool))
    if "tool" not in fitted.models or len(np.unique(told.tool)) < 2:
        return []
    said = np.asarray(fitted.models["tool"].predict(told.x, num_threads=1))
    points = [(float(said[at].mean()), float(told.tool[at].mean())) for at in _parts(said)]
    base = max(told.tool.mean(), 1 - told.tool.mean())
    text = f"AUROC {scores.auroc(told.tool, said):.3f}; the commoner answer alone is right for {base:.3f}."
    right = Line("where both agree", [(0.0, 0.0), (1.0, 1.0)], dashed=True)
    plot = lines(
        [Line("share that called a tool", points), right], across="forecast probability", up="actual share"
    )
    return [f"<h2>Tool calls</h2><p>{text}</p>", plot]


def _page(card: Card, parts: list[str]) -> str:
    sources = "; ".join(f"{source.name} ({source.licence}, {source.rows})" for source in card.trained_on)
    head = f'<meta charset="utf-8"><title>Headway: forecasts</title><style>{STYLE}</style>'
    title = (
        f"<h1>Forecasts of models {escape(card.version)}</h1>"
        f'<p class="small">Trained on (licence, rows): {escape(sources)}</p>'
    )
    return f"<!doctype html><html><head>{head}</head><body>{title}{''.join(parts)}</body></html>\n"
