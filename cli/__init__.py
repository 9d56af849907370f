"""The command line: every verb opens a file, calls the library, prints. Installed as `pucache.cli`."""
