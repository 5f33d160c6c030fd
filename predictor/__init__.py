"""Forecasts: what a job will cost before it is queued. Depends on `broker` only."""
