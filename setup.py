import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithConfigs(build_py):
    """Copies configs/ into the wheel, as modular_fairseq_cli/configs; an editable install reads them where
    they are (modular_fairseq_cli/shipped.py).
    """

    def run(self):
        super().run()
        if not self.editable_mode:
            copy = Path(self.build_lib, "modular_fairseq_cli", "configs")
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(ROOT / "configs", copy)


def version() -> str:
    text = (ROOT / "modular_fairseq_cli" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+?)"', text, re.MULTILINE)[1]


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
        # It imports as `fairseq`, and `fairseq` itself must never stand here: 0.12.2 would be installed over
        # the same folder.
        "fairseq-fixed==0.12.3.1",
        "torch>=2.6",
        "numpy",
        "omegaconf",
        "PyYAML",
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
        "dev": [
            "mypy",
            "oxlint",
            "pytest",
            "pytest-xdist",
            "ruff",
            "selenium",
            "types-PyYAML",
            "types-regex",
            "types-tabulate",
            "types-tqdm",
        ],
        "docs": ["latex2mathml", "mkdocs-material", "mkdocstrings[python]"],
    },
    entry_points={"console_scripts": ["modular-fairseq = modular_fairseq_cli.main:main"]},
)
