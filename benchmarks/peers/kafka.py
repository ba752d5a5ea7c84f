"""Apache Kafka: one node that is broker and controller, with Kafka's own client in Java."""

import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks import messages
from benchmarks.peers import java
from benchmarks.peers.peer import Running, Setting, Work, free_port, server, wait_for_port

name = "Kafka"
settings = (
    Setting(name="1", text="acks=all, log.flush.interval.messages=1", durability="synced"),
    Setting(
        name="", text="acks=all, log.flush.interval.messages unset (default)", durability="buffered"
    ),
)
_VERSION = "4.1.0"
_COORDINATES = [
    f"org.apache.kafka:kafka_2.13:{_VERSION}",
    f"org.apache.kafka:kafka-tools:{_VERSION}",
    "org.slf4j:slf4j-nop:1.7.36",
]
_WARM_SECONDS = 10
_BROKER = ["-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]


def version() -> str:
    java.jars("kafka", _COORDINATES)
    return _VERSION


@contextmanager
def started(setting: Setting, directory: Path) -> Iterator[Running]:
    class_path, log, file = (
        java.jars("kafka", _COORDINATES),
        directory / "kafka.log",
        directory / "server.properties",
    )
    port, controller = free_port(), free_port()
    file.write_text(
        f"process.roles=broker,controller\nnode.id=1\nlisteners=PLAINTEXT://127.0.0.1:{port},"
        f"CONTROLLER://127.0.0.1:{controller}\n"
        "controller.listener.names=CONTROLLER\n"
        f"controller.quorum.bootstrap.servers=127.0.0.1:{controller}\n"
        f"log.dirs={directory}/logs\noffsets.topic.replication.factor=1\n"
        "transaction.state.log.replication.factor=1\n"
        "transaction.state.log.min.isr=1\ntransaction.state.log.num.partitions=4\n"
        "auto.create.topics.enable=false\n"
        + (f"log.flush.interval.messages={setting.name}\n" if setting.name else "")
    )
    tool = ["java", "-cp", class_path, "kafka.tools.StorageTool"]
    identity = subprocess.run(
        [*tool, "random-uuid"], capture_output=True, text=True, check=True
    ).stdout.split()[-1]
    subprocess.run(
        [*tool, "format", "--standalone", "-t", identity, "-c", str(file)],
        capture_output=True,
        check=True,
    )
    with server(["java", *_BROKER, "-cp", class_path, "kafka.Kafka", file], log) as pid:
        wait_for_port(port, pid, log)
        arguments = [f"127.0.0.1:{port}"]
        with closing(
            java.load(
                "kafka", class_path, "KafkaLoad", arguments, options=[], log=directory / "load.log"
            )
        ) as load:
            message = {"tag": messages.TAG, "body": messages.PAYLOAD}
            works = (
                Work(
                    row="single",
                    command={**message, "work": "single"},
                    counts=(64, 256),
                    text="threads of one producer, which joins what waits",
                ),
                Work(
                    row="batch",
                    command={**message, "work": "batch", "size": 100},
                    counts=(8,),
                    text="100 sends, then their answers",
                ),
                Work(
                    row="transaction",
                    command={**message, "work": "transaction"},
                    counts=(16,),
                    text="a transactional producer each; begin, send, commit",
                ),
            )
            yield Running(
                roots=[pid], load=load, command={}, works=works, warm_seconds=_WARM_SECONDS
            )
