"""One thin file per command, imported when it is called."""
