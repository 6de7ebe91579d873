"""From text to trained models: corpora and batches (numpy), schedule, engine and checkpoints (torch)."""
