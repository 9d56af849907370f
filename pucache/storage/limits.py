"""Limits on what files of others may ask for. Whoever exceeds one is told which; nothing else bounds a file's size."""

from __future__ import annotations

IMAGE_BYTES = 1 << 30  # encoded bytes of one image
IMAGE_PIXELS = 178_956_970  # decoded at once; Pillow's own limit: half a GiB of RGB
JPEG_BYTES = 3 << 29  # coefficients of a progressive JPEG, which its decoder keeps as a whole
TILES, GRID_TILES = 1 << 20, 100  # parts of one image, and of a grid along a side
BOX_SIDE = 10**9  # pixels of a box
PIXEL_BYTES = 1 << 26  # of images, or of parts of one, that are resized and handed over together
KEY_BYTES = 4096
UNPACKED_TIMES = 100  # what unpacks to more than this many times its size holds neither images nor a table
UNPACKED_SMALL = 1 << 26  # bytes that any image in an archive may unpack to, such as a large bitmap of one colour
TABLE_BYTES = 1 << 31  # of a table that is packed, or whose columns repeat what they hold
FOOTER_BYTES = 1 << 30  # of a text in the footer of Parquet: an export holds its failures there
PATTERN_SECONDS = 10.0  # that a regular expression may take on all keys
SHEET_CELLS = 1 << 24  # between the first and the last cell of a spreadsheet
SHEET_BYTES = 1 << 30  # memory in which a spreadsheet is read
SHEET_SECONDS = 300
MEMBER_BYTES = 1 << 20  # a member of an archive that holds the label of an image
NETWORK_SIDE = 4096  # of a network that a configuration describes, where its weights have no longer one
NETWORK_TIMES = 2  # its parameters, for each number in its weights
SHARDS = 1_000_000  # files that one pattern names
