"""Batches: a Celery worker that feeds files into the queue slice by slice, and what it shows in Flower."""
