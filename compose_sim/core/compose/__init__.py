"""Render a plan as a Compose document, and an image recipe as a Dockerfile."""
