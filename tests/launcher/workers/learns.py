"""Two lives of a script under one agent's hands, in an interpreter whose site-packages are the test's own.

Arguments: a folder. Prints, as JSON, what was said and what each life found imported at its begin.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from tests.launcher.workers.testbed import WorkerTestbed, until

SCRIPT = """
    import json, os, sys
    found = sorted({"good", "good.part7", "own", "beside", "reads", "starts", "falls", "ranked"} & sys.modules.keys())
    import good, own, beside, reads, starts, ranked
    from good import part7
    try:
        import falls
    except RuntimeError:
        pass
    told = {"found": found, "rank": ranked.RANK, "home": reads.HOME, "finder": len(sys.meta_path)}
    print(json.dumps(told), flush=True)
    sys.stdin.read() if os.environ["LIFE"] == "1" else None
"""


async def lives(root: Path):
    own = root / "own"
    own.mkdir()
    (own / "own.py").write_text("")
    env = {**os.environ, "PYTHONPATH": f"{own}:{os.environ['PYTHONPATH']}", "HOME": "/home/of/both"}
    testbed, said, out = WorkerTestbed(root, preload=("json",), env=env, learn=str(root), quiet_s=0.1), [], []
    testbed.file("beside.py")
    testbed.hear = lambda event, fields: said.append((event, fields))
    script = testbed.script(SCRIPT)
    try:
        for life in ("1", "2"):
            order = testbed.order(script, env={"RANK": life, "LIFE": life})
            await testbed.start(order)
            if life == "1":
                await testbed.line()
                await until(lambda: any(event == "parent_learned" for event, _ in said))
            else:
                await testbed.ended()
            out.append(json.loads(testbed.out()))
            await testbed.stop()
    finally:
        await testbed.processes.close()
    print(json.dumps({"said": said, "lives": out, "err": testbed.err()}))


asyncio.run(lives(Path(sys.argv[1])))
