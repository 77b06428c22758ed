"""A stage that reports one figure, starts a process in a session of its own, and hangs."""

import subprocess
import sys
import time

from hack.gpu.figures import arguments

options = arguments()
options.report("before_it_hangs", 1)
options.report(
    "child", subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True).pid
)
time.sleep(600)
