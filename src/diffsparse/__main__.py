"""`python -m diffsparse` is the command `diffsparse`."""

from diffsparse.cli.main import main

if __name__ == "__main__":
    main()
