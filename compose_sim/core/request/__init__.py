"""Read and validate what the user asks for: `composesim.yaml`, flags and `pyproject.toml`."""
