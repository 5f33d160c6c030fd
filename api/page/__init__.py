"""The live page, put together from its parts so that it is one file, which loads nothing."""

from functools import cache
from importlib import resources

# What a browser lets it do: its own styles and script, and questions to its own server
PAGE_MAY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@cache
def live_page() -> bytes:
    page = _part("index.html")
    for name in ("page.css", "page.js"):
        page = page.replace(f"/* {name} */", _part(name), 1)
    return page.encode()


def _part(name: str) -> str:
    return (resources.files("api.page") / name).read_text(encoding="utf-8")
