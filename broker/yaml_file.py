"""YAML, where a name that is given twice in one mapping is refused: plain YAML would let the later one win."""

from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Names that a merge (`<<`) brings may be given again: that is what it is for."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self._looked_at: set[int] = set()  # by identity: the document holds them all

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Called for each mapping, the first time before a merge has put another's names into it."""
        if id(node) not in self._looked_at:
            self._looked_at.add(id(node))
            self._refuse_twice(node)
        super().flatten_mapping(node)

    @staticmethod
    def _refuse_twice(node: yaml.MappingNode) -> None:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            name = (key.tag, key.value)
            if name in seen:
                problem = f"{key.value!r} is given twice in one mapping"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(name)


def load_yaml(text: bytes) -> Any:
    """Raises ValueError."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - it is a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(f"is not YAML: {error}") from None
    except RecursionError:
        raise ValueError("is not YAML that can be read: its lists or mappings are nested too deep") from None
