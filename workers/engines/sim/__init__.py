"""A GPU replica that is not there: the decisions of a serving engine, with step times from a model of the hardware.

`replica.py` decides what a step computes and is pure; `virtual.py` and `realtime.py` are two clocks for it; `server.py`
speaks vLLM's HTTP. docs/simulated_engine.md says what it models and what it does not.
"""
