"""Debug a rank that `attach` is connected to, with pdb or in an editor."""
