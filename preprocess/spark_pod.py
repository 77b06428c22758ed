"""Start the Spark process of a pod: `python -m turnout.preprocess.spark_pod driver …` or `… executor`.

This is the entry point of the image in examples/preprocess. Source: Spark 4.1, `BasicDriverFeatureStep` and
`BasicExecutorFeatureStep`
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import NoReturn

EXECUTOR_CLASS = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
# Options of the executor's class, and the variables in which Spark passes their values.
EXECUTOR_OPTIONS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
JAVA_OPTION = "SPARK_JAVA_OPT_"  # followed by a number from 0


def command(arguments: Sequence[str], environment: Mapping[str, str], spark_home: str) -> list[str]:
    """Return the command line of the container.

    arguments: those that Spark passes to the image, first `driver` or `executor`. environment: the variables of the
    container. spark_home: the folder of Spark. Raises KeyError for a missing variable, ValueError for another first
    argument.
    """
    match arguments:
        case ["driver", *rest]:
            address = f"spark.driver.bindAddress={environment['SPARK_DRIVER_BIND_ADDRESS']}"
            return [f"{spark_home}/bin/spark-submit", "--deploy-mode", "client", "--conf", address, *rest]
        case ["executor", *_]:
            return _executor_command(environment, spark_home)
    raise ValueError(f"expected driver or executor, got {' '.join(arguments) or 'nothing'}")


def _executor_command(environment: Mapping[str, str], spark_home: str) -> list[str]:
    """Return the command line of a Spark executor.

    environment: the variables that Spark sets in its pods. spark_home: the folder of Spark. Raises KeyError for a
    missing variable.
    """
    numbers = sorted(int(name.removeprefix(JAVA_OPTION)) for name in environment if name.startswith(JAVA_OPTION))
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    places = [place for place in (environment.get("SPARK_CLASSPATH"), f"{spark_home}/jars/*") if place]
    pairs = [(option, environment[variable]) for option, variable in EXECUTOR_OPTIONS.items()]
    return [
        f"{environment['JAVA_HOME']}/bin/java" if environment.get("JAVA_HOME") else "java",
        *(environment[f"{JAVA_OPTION}{number}"] for number in numbers),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        ":".join(places),
        EXECUTOR_CLASS,
        *(word for pair in pairs for word in pair),
    ]


def main() -> NoReturn:
    """Replace this process by the container's command. It does not return: it exits with 2 if arguments or variables
    are wrong.
    """
    home = os.environ.get("SPARK_HOME") or os.path.dirname(str(getattr(find_spec("pyspark"), "origin", "")))
    try:
        arguments = command(sys.argv[1:], os.environ, home)
    except (KeyError, ValueError) as error:
        missing = f"Spark did not set {error.args[0]}"
        print(f"spark_pod: {missing if isinstance(error, KeyError) else error}", file=sys.stderr)
        sys.exit(2)
    os.execvp(arguments[0], arguments)


if __name__ == "__main__":
    main()
