"""The version of pucache."""

__version__ = "0.4.0"
