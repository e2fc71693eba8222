"""Start four nodes on one machine without composesim, in the ways that people use."""
