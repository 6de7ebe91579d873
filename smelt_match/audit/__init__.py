"""Two models compared under one convention and context: what is matched, by how much, and what a model costs."""
