"""One module per verb of the command line, imported when the verb runs."""
