"""Run horovodrun, and fork the ranks that it asks for over ssh."""
