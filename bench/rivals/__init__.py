"""What a person would start four nodes with on one machine, if composesim did not exist."""
