"""`python -m pucache`, which is how torchrun starts it."""

from .cli.main import run

if __name__ == "__main__":
    run()
