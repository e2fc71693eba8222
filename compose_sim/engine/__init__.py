"""Touch the world on behalf of `core`, which decides: containers, processes, networks, files. Nothing here prints."""
