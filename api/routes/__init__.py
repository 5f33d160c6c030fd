"""Routes: parse, call, render."""
