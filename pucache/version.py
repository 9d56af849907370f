"""The version of pucache."""

__version__ = "0.5.0"
