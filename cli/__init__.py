"""The command line, one module per command. Installed as `pucache.cli`."""
