"""The paper's experiments: what was run, what it gave, what it costs, and how it is run again."""
