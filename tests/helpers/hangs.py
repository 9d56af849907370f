"""How long tests wait before they call a process hung."""

HANG_SECONDS = 900  # on the clock: ends what never ends, and no machine is busy enough to reach it
