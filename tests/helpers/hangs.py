"""How long tests wait before they call a process hung."""

HANG_SECONDS = 240  # on the clock: ends what never ends; no busy machine has reached a quarter of it
