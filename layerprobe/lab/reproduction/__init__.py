"""The paper's experiments: what was run, what it gave, what it costs again. Knows numbers; trains nothing."""
