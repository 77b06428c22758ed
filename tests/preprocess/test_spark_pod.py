"""The entry point of an image for Spark on Kubernetes: the command line that Spark's own variables ask for."""

import pytest

from turnout.preprocess.spark_pod import EXECUTOR_CLASS, command

EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@preprocess-driver-svc:7078",
    "SPARK_EXECUTOR_ID": "2",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "spark-8f",
    "SPARK_EXECUTOR_POD_IP": "10.1.2.3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "preprocess-exec-2",
    "SPARK_EXECUTOR_MEMORY": "1024m",
}
BACKEND = [
    EXECUTOR_CLASS,
    *("--driver-url", "spark://CoarseGrainedScheduler@preprocess-driver-svc:7078"),
    *("--executor-id", "2"),
    *("--cores", "2"),
    *("--app-id", "spark-8f"),
    *("--hostname", "10.1.2.3"),
    *("--resourceProfileId", "0"),
    *("--podName", "preprocess-exec-2"),
]


def test_a_driver_is_a_spark_submit_that_stays_in_its_pod():
    arguments = [
        "driver",
        "--properties-file",
        "/opt/spark/conf/spark.properties",
        "local:///app/script.py",
        "--workers",
        "64",
    ]
    assert command(arguments, {"SPARK_DRIVER_BIND_ADDRESS": "10.1.2.9"}, "/spark") == [
        *("/spark/bin/spark-submit", "--deploy-mode", "client"),
        *("--conf", "spark.driver.bindAddress=10.1.2.9"),
        *arguments[1:],
    ]


@pytest.mark.parametrize(
    ("more", "begins"),
    [
        pytest.param({}, ["java", "-Xms1024m", "-Xmx1024m", "-cp", "/spark/jars/*"], id="the java on PATH"),
        pytest.param(
            {"JAVA_HOME": "/jre", "SPARK_CLASSPATH": "/more/*"},
            ["/jre/bin/java", "-Xms1024m", "-Xmx1024m", "-cp", "/more/*:/spark/jars/*"],
            id="a java and classes of the image's own",
        ),
        pytest.param(
            {f"SPARK_JAVA_OPT_{number}": f"-Dn={number}" for number in (10, 2, 0)},
            ["java", "-Dn=0", "-Dn=2", "-Dn=10", "-Xms1024m", "-Xmx1024m", "-cp", "/spark/jars/*"],
            id="options of java in the order of their numbers",
        ),
    ],
)
def test_an_executor_is_the_backend_with_what_spark_set(more, begins):
    assert command(["executor"], EXECUTOR | more, "/spark") == [*begins, *BACKEND]


@pytest.mark.parametrize(
    ("arguments", "environment", "error", "message"),
    [
        pytest.param(["executor"], {}, KeyError, "SPARK_EXECUTOR_MEMORY", id="an executor without its variables"),
        pytest.param(["driver"], {}, KeyError, "SPARK_DRIVER_BIND_ADDRESS", id="a driver without its address"),
        pytest.param([], {}, ValueError, "got nothing", id="no argument"),
        pytest.param(["shell", "-c"], {}, ValueError, "got shell -c", id="something else"),
    ],
)
def test_what_spark_would_not_ask_is_refused(arguments, environment, error, message):
    with pytest.raises(error, match=message):
        command(arguments, environment, "/spark")
