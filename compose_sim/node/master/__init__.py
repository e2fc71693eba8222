"""The master: rendezvous, or the head of a framework that has a driver."""
