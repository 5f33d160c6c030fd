"""What is said about values of settings and of `headway.yaml` that are wrong."""

from pydantic import ValidationError
from pydantic_core import ErrorDetails

PLAIN_WORDS = {
    "extra_forbidden": "is not a known name here",
    "missing": "is missing",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "string_type": "must be a text",
    "tuple_type": "must be a list",
    "model_type": "must be a mapping of names to values",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_pattern_mismatch": "is not written as such a name may be",
}


def _too_short(item: ErrorDetails) -> str:
    """Of a list or a text that has too little in it; "" for other errors."""
    least = item.get("ctx", {}).get("min_length")
    if least is None:
        return ""
    if least == 1:
        return "must not be empty"
    listed = item["ctx"].get("field_type") in ("Tuple", "List")
    return f"must have at least {least} {'entries' if listed else 'characters'}"


def describe(error: ValidationError, *, prefix: str = "") -> str:
    """One line per wrong value. Values are not repeated: URLs and keys carry secrets."""
    lines: list[str] = []
    items = error.errors(include_url=False, include_input=False)
    for item in items:
        loc = item["loc"]
        inner = any(other["loc"][: len(loc)] == loc and len(other["loc"]) > len(loc) for other in items)
        # both follow from another value being wrong
        if item["type"] == "default_factory_not_called" or (item["type"] == "too_short" and inner):
            continue
        where = ".".join(str(part) for part in loc)
        name = prefix + where.upper() if prefix else where
        said = _too_short(item) or PLAIN_WORDS.get(item["type"], item["msg"].removeprefix("Value error, "))
        said = said.replace("Input should be", "must be", 1)
        lines.append(f"{name}: {said}" if where else said)
    return "; ".join(lines)
