"""The paper's experiments: their settings, reported figures, cost, and how to reproduce them."""
