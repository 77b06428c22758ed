"""The script that Spark runs: `spark-submit --executor-cores=2 --num-executors=2 pyspark_preprocess.py --input …`.

Its options are those of `turnout preprocess`. The package's metadata says where the script lies. Source: DL-67, DL-68
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the options of the command line on Spark, and return the exit code."""
    # Python puts a script's folder first on its path. There, our `tokenizers` would be imported for that of PyPI.
    folder = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != folder]
    from turnout.preprocess.spark_runner import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
