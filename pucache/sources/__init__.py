"""The kinds of sources of images, one a module; `pucache.images` opens them."""
