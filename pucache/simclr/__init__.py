"""Debiased SimCLR: an encoder learned from unlabelled images. `pucache.pretrain` is the verb."""
