"""Which GPUs does each node get, how are they shared, how do containers come by them? Decided from an inventory alone."""
