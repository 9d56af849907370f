"""Entry point of `python -m pucache`, which torchrun uses."""

from .cli.start import run

if __name__ == "__main__":
    run()
