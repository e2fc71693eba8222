"""Plan the containers of each service, in one pure module each."""

TEMPLATES = f"{__file__.rpartition('/core/')[0]}/templates"
