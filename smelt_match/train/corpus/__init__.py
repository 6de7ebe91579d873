"""Building a corpus: reading documents, tokenising, splitting, removing duplicates, writing streams."""
