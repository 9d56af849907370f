"""How commands of pucache 0.4 are spelled today, for a comparison of what both versions do.

A cut adds a line to `DROPPED`, or a way of its own to `translate`.
"""

DROPPED = {  # command: options that went without a successor, and how many values each took
    "embed": {"--profile": 0},
    "estimate-prior": {"--method": 1},
    "sweep-priors": {"--truth": 1, "--no-plot": 0},
    "export": {"--scores": 1},
}


def translate(arguments: list[str]) -> list[list[str]]:
    """The commands of today in place of one of 0.4: lists of arguments, without ``pucache``."""
    command, kept, rest = arguments[0], arguments[:1], iter(arguments[1:])
    for argument in rest:
        values = DROPPED.get(command, {}).get(argument)
        if values is None:
            kept.append(argument)
        for _ in range(values or 0):
            next(rest)
    return [kept]
