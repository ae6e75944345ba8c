"""Write the config groups of configs/hydra, which fairseq-hydra-train offers by names such as model=ARCH.

    python scripts/hydra_groups.py [FOLDER]     FOLDER: default configs/hydra

FOLDER/model gets a file for each arch, with the options that the arch sets. The criteria and the optimizer
of this project have a file, too. All files follow from the code. After a change there, run this program
again; a test compares the files with the code.
"""

import argparse
from pathlib import Path

import yaml

import modular_fairseq  # noqa: F401  (registers the archs)
from modular_fairseq.models.options import PRESETS
from modular_fairseq.models.registry import CRITERIA

ROOT = Path(__file__).resolve().parent.parent


def groups() -> dict[str, str]:
    """Return the content of each file, keyed by its path in the folder."""
    files = {f"model/{arch}": {"_name": arch, **options} for arch, options in PRESETS.items()}
    for group, name in (*(("criterion", each) for each in CRITERIA), ("optimizer", "torch_adam")):
        files[f"{group}/{name}"] = {"_name": name}
    return {f"{name}.yaml": yaml.safe_dump(keys, sort_keys=False) for name, keys in files.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "configs/hydra", metavar="FOLDER")
    args = parser.parse_args()
    for name, content in groups().items():
        path = args.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
