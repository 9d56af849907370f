"""Imported by Python when it starts with this folder on PYTHONPATH: see `benchmarks.gpu.checkout`."""

import benchmarks.gpu.checkout  # noqa: F401
