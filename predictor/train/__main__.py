"""`python -m predictor.train train FILE… --into FOLDER` and `… report FILE… --models FOLDER --page PAGE.html`."""

import argparse
import sys
from importlib.resources import as_file, files
from pathlib import Path

from broker.errors import BrokerError
from predictor.train.candidate import load_fitted, train
from predictor.train.report import report
from predictor.train.rows import read_rows

SHIPPED = files("predictor").joinpath("models")


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 2 if files are wrong or teach too little."""
    options = _options().parse_args(arguments)
    try:
        with as_file(SHIPPED) as shipped:
            said = options.run(options, shipped)
    except (BrokerError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{said}\n")
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m predictor.train", description="Train and judge forecasts."
    )
    commands = parser.add_subparsers(required=True)
    learn = commands.add_parser("train", help="write a candidate folder of models")
    learn.add_argument("files", nargs="+", type=Path, help="finished requests, JSON lines")
    learn.add_argument("--into", type=Path, required=True, help="folder to write")
    learn.add_argument("--base", type=Path, help="folder to take over from what the files do not teach")
    learn.add_argument("--shuffle", action="store_true", help="the lines are in no order of time")
    learn.set_defaults(run=_train)
    show = commands.add_parser("report", help="write a page about models and requests they have not seen")
    show.add_argument("files", nargs="+", type=Path, help="finished requests, JSON lines")
    show.add_argument("--models", type=Path, help="folder of models; the shipped ones by default")
    show.add_argument("--page", type=Path, required=True, help="HTML file to write")
    show.set_defaults(run=_report)
    return parser


def _train(options: argparse.Namespace, shipped: Path) -> str:
    rows = read_rows(options.files)
    card = train(rows, options.into, base=options.base or shipped, ordered=not options.shuffle)
    told = "\n".join(f"{name:>14} {value:.4g}" for name, value in card.scores.items())
    return f"{options.into}: version {card.version}, on the newest fifth of {len(rows)} requests\n{told}"


def _report(options: argparse.Namespace, shipped: Path) -> str:
    card, fitted = load_fitted(options.models or shipped)
    options.page.write_text(report(card, fitted, rows=read_rows(options.files)), "utf-8")
    return f"{options.page}: models {card.version}"


if __name__ == "__main__":
    sys.exit(main())
