"""The master of a run: the rendezvous of the nodes, or the driver that controls them."""
