"""Engines and the processes that pull work for them."""
