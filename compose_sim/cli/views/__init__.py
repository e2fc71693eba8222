"""Format reports, states and findings for a terminal or a CI job."""
