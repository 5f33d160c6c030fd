"""Training of the predictor's models. Wants LightGBM and NumPy; nothing on a request's way imports it.

`rows.py` reads what to learn from, `word_weights.py` and `fit.py` learn, `scores.py` measures, `report.py` shows.
"""
