"""``python -m poolmgr``."""

if __name__ == "__main__":  # imported again by every process that a command starts
    from poolmgr.cli.main import run

    run()
