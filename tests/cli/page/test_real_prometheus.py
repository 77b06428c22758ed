"""A real Prometheus understands what the page asks about the time before it started."""

import asyncio
import time

import aiohttp
import pytest
import yaml

from hack.controlplane.children import Children
from hack.controlplane.plane import free_ports
from hack.controlplane.tools import cache
from tests.cli.page.states import job
from tests.deploy.test_hostile_exporter import exporter
from tests.kit.clock import ManualClock
from tests.kit.wait import until_async
from turnout.cli.page.messages import QueueSample
from turnout.cli.page.prometheus import Prometheus

pytestmark = [pytest.mark.real, pytest.mark.asyncio]

QUEUE = r'te"am\\a'  # as the text format escapes te"am\a
PAGE = f"""
turnout_queue_gpus{{queue="{QUEUE}",type="deserved"}} 8
turnout_queue_gpus{{queue="{QUEUE}",type="used"}} 11
turnout_queue_worker_gpus{{queue="{QUEUE}",part="elastic"}} 4
turnout_job_gpus{{queue="q",job_namespace="team-a",job_kind="Job",job_name="bert",part="min"}} 16
turnout_job_gpus{{queue="q",job_namespace="team-a",job_kind="Job",job_name="bert",part="elastic"}} 8
turnout_launcher_members{{job_namespace="team-a",job_kind="Job",job_name="unlisted"}} 5
"""


async def test_a_real_prometheus_tells_the_past_of_queues_and_jobs(tmp_path):
    (port,), children = free_ports(1), Children(tmp_path)
    url = f"http://127.0.0.1:{port}"
    async with exporter(PAGE.replace('te"am', r"te\"am"), asyncio.Event()) as at, aiohttp.ClientSession() as session:
        scrape = {"job_name": "autoscaler", "static_configs": [{"targets": [f"127.0.0.1:{at}"]}]}
        every = {"scrape_interval": "500ms", "scrape_timeout": "500ms"}
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump({"global": every, "scrape_configs": [scrape]}))
        flags = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
        flags.append(f"--web.listen-address=127.0.0.1:{port}")

        async def queue():
            return (await Prometheus(session, url, "", ManualClock()).queue('te"am\\a', "1h", time.time())).samples

        async def size(name):
            past = Prometheus(session, url, "", ManualClock())
            return (await past.job(job(f"Job/team-a/{name}", since_at_s=time.time() - 60), time.time())).samples

        try:
            children.start("prometheus", [str(cache.binary("prometheus")), *flags])

            def log():
                return children.log("prometheus")[-3000:]

            found = await until_async(queue, log)
            assert found[-1] == QueueSample(found[-1].at_s, 8, 7, 4, 0, 0, 3)
            assert (await until_async(lambda: size("bert"), log))[-1].workers == 3
            assert (await until_async(lambda: size("unlisted"), log))[-1].workers == 5
        finally:
            children.close()
