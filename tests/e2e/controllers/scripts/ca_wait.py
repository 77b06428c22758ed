"""Runs until the file `enough` is there, or ends with the code that it is given.

Arguments: a folder, in which it says that it has begun, and a code.
"""

import os
import sys
import time
from pathlib import Path

folder, code = Path(sys.argv[1]), int(sys.argv[2])
(folder / f"began-{os.environ['RUN']}").touch()
while not code and not (folder / "enough").exists():
    time.sleep(0.05)
sys.exit(code)
