"""The version of pucache."""

__version__ = "0.2.0"
