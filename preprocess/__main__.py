"""`python -m turnout.preprocess`: what `turnout preprocess` is, without the rest of the command."""

from __future__ import annotations

import sys

from turnout.preprocess.command import main

if __name__ == "__main__":
    sys.exit(main())
