"""Tags of words: entities, and tags such as parts of speech."""
