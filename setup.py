"""Package modular_fairseq and its command line for pip."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithConfigs(build_py):
    """A build that also copies configs/ into the wheel, as modular_fairseq_cli/configs.

    An editable install reads configs/ in the repository instead, see modular_fairseq_cli/shipped.py.
    """

    def run(self) -> None:
        """Build the package, and copy configs/ unless the install is editable."""
        super().run()
        if not self.editable_mode:
            copy = Path(self.build_lib, "modular_fairseq_cli", "configs")
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(ROOT / "configs", copy)


def version() -> str:
    """Return the version that modular_fairseq_cli/__init__.py names, without importing the package."""
    text = (ROOT / "modular_fairseq_cli" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+?)"', text, re.MULTILINE)
    assert found, "modular_fairseq_cli/__init__.py has no __version__"
    return found[1]


setup(
    name="modular_fairseq",
    version=version(),
    description="A fairseq plugin for research on modular Transformers in machine translation",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
    ],
    project_urls={
        "fairseq": "https://github.com/facebookresearch/fairseq",
        "Mixture of attentive experts (MAE)": "https://aclanthology.org/2020.acl-main.587",
    },
    python_requires=">=3.11,<3.13",
    packages=find_packages(
        include=["modular_fairseq", "modular_fairseq.*", "modular_fairseq_cli", "modular_fairseq_cli.*"]
    ),
    package_data={
        "modular_fairseq_cli.report": ["assets/*"],
        "modular_fairseq_cli.corpora": ["recipes/*.yaml"],
    },
    cmdclass={"build_py": BuildWithConfigs},
    install_requires=[
        # This package is imported as `fairseq`. The package `fairseq` itself must never stand here, as pip
        # would install its version 0.12.2 into the same folder.
        "fairseq-fixed==0.12.3.1",
        "torch>=2.6",
        "numpy",
        "omegaconf",
        "PyYAML",
        "regex",
        "sacrebleu",
        "sacremoses",
        "scipy",
        "sentencepiece",
        "subword-nmt",
        "tabulate",
        "tensorboardX",
        "tqdm",
    ],
    extras_require={
        "pictures": ["matplotlib"],
        "pixels": ["pillow", "scikit-learn"],
        "speech": ["pesq", "pystoi", "soundfile", "torchmetrics"],  # for examples/speech_enhancement
        "cluster": ["submitit>=1.5"],  # older versions always call srun
        "export": ["ctranslate2>=4.8"],  # older versions were not tried
        "dev": [
            "ctranslate2",
            "mypy",
            "oxlint",
            "pytest",
            "pytest-xdist",
            "ruff",
            "selenium",
            "submitit",
            "types-PyYAML",
            "types-regex",
            "types-tabulate",
            "types-tqdm",
        ],
        "docs": ["latex2mathml", "mkdocs-material", "mkdocstrings[python]"],
    },
    entry_points={"console_scripts": ["modular-fairseq = modular_fairseq_cli.main:main"]},
)
