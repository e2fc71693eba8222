"""One module per kind of fault."""
