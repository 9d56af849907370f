"""The version of pucache."""

__version__ = "0.3.0"
