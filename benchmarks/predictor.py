"""Forecasts of length, cost and tool calls on public data; see `predictor_forecasts.py`.

This file bears the package's name, and Python looks into a script's own folder first. So, imported by another benchmark,
it puts the package in its place.
"""

import sys
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    from predictor_forecasts import main

    main()
else:
    root = str(Path(__file__).resolve().parents[1])
    del sys.modules[__name__]
    sys.path.insert(0, root)
    import_module(__name__)
    sys.path.remove(root)
