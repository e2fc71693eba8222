"""Run horovodrun, and fork the ranks that it starts over ssh."""
