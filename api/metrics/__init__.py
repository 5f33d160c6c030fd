"""Prometheus: what there is to measure, gathered when it is scraped. Every API process tells the same (ADR 11)."""
