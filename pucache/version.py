"""The version of pucache."""

__version__ = "0.1.0"
