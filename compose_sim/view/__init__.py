"""The page that shows a run: what it reads, the one file that it can become, and the server of the live page."""
