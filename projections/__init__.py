"""What the chain wants to know: one module per view, each with its row, its fold and its questions."""
