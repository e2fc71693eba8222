"""Job files as pure functions of values: `exports` writes them, `imports` reads them."""
