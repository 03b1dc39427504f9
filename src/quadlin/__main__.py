"""`python -m quadlin` is the command `quadlin`."""

from quadlin.cli import command

if __name__ == "__main__":
    command()
