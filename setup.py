from setuptools import find_packages, setup

setup(
    name="modular_fairseq",
    version="0.1.0",
    description="A fairseq plugin for research on modular Transformers in machine translation",
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.13",
    packages=find_packages(
        include=["modular_fairseq", "modular_fairseq.*", "modular_fairseq_cli", "modular_fairseq_cli.*"]
    ),
    package_data={"modular_fairseq_cli.report": ["assets/*"]},
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
        "dev": ["pytest", "ruff", "selenium"],
    },
    entry_points={"console_scripts": ["modular-fairseq = modular_fairseq_cli.main:main"]},
)
