"""The paper's experiments: their settings, reported figures and cost, and how to reproduce them."""
