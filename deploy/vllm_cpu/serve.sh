#!/usr/bin/env bash
# Serves the model folder that install.sh made, on loopback, with vLLM's own OpenAI API. All further words are vLLM's:
#
#   deploy/vllm_cpu/serve.sh --port 8100 --max-num-seqs 8
#
# VLLM_VENV names another environment than .venv-vllm. One server needs 3.6 GB of memory, 1 GiB of it for the KV cache.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
VENV=${VLLM_VENV:-$(dirname "$(dirname "$HERE")")/.venv-vllm}

# It asks no hub and reports to nobody. 1 GiB of KV cache is 46,592 tokens of this model.
export VLLM_TARGET_DEVICE=cpu VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
exec "$VENV/bin/vllm" serve "$VENV/smollm2" --served-model-name smollm2 --host 127.0.0.1 \
	--enforce-eager --scheduling-policy priority --enable-prompt-tokens-details --disable-uvicorn-access-log "$@"
