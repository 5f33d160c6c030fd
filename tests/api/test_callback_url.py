"""`callback_url` of a job: taken, kept, and part of what an idempotency key stands for."""

from broker.ends import Ends, Who
from tests.api.harness import ScriptedWorker, Served, chat, whole_answer

HOOK = "https://hooks.example.com/done"


async def test_job_keeps_its_address_and_its_end_is_noted(served: Served, worker: ScriptedWorker) -> None:
    asked = chat(callback_url=HOOK, metadata={"a": "b"}, **{"class": "P1"})
    job_id = (await served.http.post("/v1/jobs", json=asked)).json()["id"]
    ends = Ends(served.pipe, Who.CALLBACK)
    assert await ends.look(["small"]) == []
    lease = await worker.claim()
    assert b"callback" not in lease.body, "it is not the engine's business"
    await worker.finish(lease, whole_answer("ok"))
    told = (await served.http.get(f"/v1/jobs/{job_id}")).json()
    assert told["callback_url"] == HOOK
    assert told["metadata"] == {"a": "b"}
    assert await ends.look(["small"]) == [job_id]
    await ends.drop([job_id])


async def test_same_idempotency_key_with_another_address_is_409(served: Served) -> None:
    headers = {"Idempotency-Key": "k"}
    codes, ids = [], set()
    for url in (HOOK, HOOK, HOOK + "?other"):
        asked = chat(callback_url=url, **{"class": "P1"})
        answer = await served.http.post("/v1/jobs", json=asked, headers=headers)
        codes.append(answer.status_code)
        ids |= {answer.json().get("id")} - {None}
    assert codes == [202, 202, 409]
    [job_id] = ids
    await served.producer.cancel(job_id)
    await Ends(served.pipe, Who.CALLBACK).drop([job_id])
