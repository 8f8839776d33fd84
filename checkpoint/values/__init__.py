"""How values become bytes, type by type: what `serde` is made of. Nothing here knows of threads or checkpoints."""
