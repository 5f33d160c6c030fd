"""A GGUF file as a folder that vLLM loads: bf16 weights, tokenizer and chat template; used by install.sh.

python model.py WEIGHTS.gguf FOLDER
"""

import os
import sys
from pathlib import Path

# Before transformers is imported: everything is in the file, and a log wants no progress bars.
os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging


def convert(weights: Path, folder: Path) -> None:
    logging.set_verbosity_error()
    source = {"pretrained_model_name_or_path": weights.parent, "gguf_file": weights.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    if hasattr(model.config, "quantization_config"):
        # The weights are dequantized by now; left in, the config would have vLLM look for packed ones.
        del model.config.quantization_config
        model.hf_quantizer = None
    unfinished = folder.with_suffix(".unfinished")
    tokenizer.save_pretrained(unfinished)
    model.save_pretrained(unfinished)
    unfinished.rename(folder)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
