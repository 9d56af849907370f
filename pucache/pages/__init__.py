"""HTML pages to look at: each one file, with no network, script and styles inside."""
