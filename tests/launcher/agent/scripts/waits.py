"""Rank 0 ends at once, the others when they are told to."""

import os
import sys
import time
from pathlib import Path

while os.environ["RANK"] != "0" and not (Path(sys.argv[1]) / "finish").exists():
    time.sleep(0.01)
