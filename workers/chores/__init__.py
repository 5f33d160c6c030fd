"""Chores off the data path, run by RQ: the batches' sweeper, and what has to expire outside Redis."""
