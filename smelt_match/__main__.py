"""``python -m smelt_match`` is ``smelt-match``."""

from smelt_match.cli import main

if __name__ == "__main__":
    main()
