"""The load of the disk over HTTP: figures of this machine, and every missing one with its reason."""

import math

from tests.support.http import ok, until

PARTS = ("device", "process", "reads", "cache", "pressure", "log")


def test_the_load_of_the_disk_is_measured_and_every_missing_figure_has_its_reason(api, topic):
    ok(api.post(f"/v1/topics/{topic}/messages", json={"payload": "x"}), 201)
    ok(api.get(f"/v1/topics/{topic}/queues/0/messages"))

    disk = until(
        lambda: (now := ok(api.get("/v1/admin/disk")))["window_ms"] and now, "it was measured"
    )

    absent = {one["field"]: one["reason"] for one in disk["absent"]}
    for part in PARTS:
        assert (part in disk) != (part in absent), part
        for value in disk.get(part, {}).values():
            assert isinstance(value, str) or (math.isfinite(value) and value >= 0)
    assert "log" in disk
    assert all(absent.values())
    assert all(one["message"] and one["action"] for one in disk["diagnoses"])
    assert 0 < disk["used_ratio"] <= 1
    assert disk["writable"] is True


def test_the_metrics_say_of_each_diagnosis_whether_it_was_found(api):
    text = api.get("/metrics").text

    assert 'escrowmq_disk_diagnosis{code="other_process"}' in text
    assert 'escrowmq_disk_diagnosis{code="cold_reads"}' in text
