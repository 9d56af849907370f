"""Ranking the unlabelled: by similarity, approximately where caches are large, fused with a model, spread out."""
