"""A tag for every word: entities, and tags such as parts of speech."""
