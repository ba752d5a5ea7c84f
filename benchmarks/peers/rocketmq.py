"""Apache RocketMQ: a name server and one broker, with RocketMQ's own client in Java."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks import messages
from benchmarks.peers import java
from benchmarks.peers.peer import Running, Setting, Work, free_port, server, wait_for_port

name = "RocketMQ"
settings = (
    Setting(name="SYNC_FLUSH", text="flushDiskType SYNC_FLUSH", durability="synced"),
    Setting(name="ASYNC_FLUSH", text="flushDiskType ASYNC_FLUSH", durability="buffered"),
)
_VERSION = "5.3.3"
COORDINATES = [
    f"org.apache.rocketmq:rocketmq-{part}:{_VERSION}"
    for part in ("broker", "namesrv", "client", "tools")
]
_WARM_SECONDS = 10
OPENS = [
    f"--add-{how}=java.base/{package}=ALL-UNNAMED"
    for how, package in (
        ("exports", "jdk.internal.ref"),
        ("opens", "java.nio"),
        ("opens", "sun.nio.ch"),
        ("opens", "java.lang"),
        ("opens", "java.util"),
        ("opens", "jdk.internal.misc"),
    )
]
_BROKER = ["-server", "-Xms2g", "-Xmx2g", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=4g"]


def version() -> str:
    java.jars("rocketmq", COORDINATES)
    return _VERSION


@contextmanager
def started(setting: Setting, directory: Path) -> Iterator[Running]:
    root, class_path = directory, java.jars("rocketmq", COORDINATES)
    names, broker = free_port(), free_port()
    own = [*OPENS, f"-Duser.home={root}", "-cp", class_path]
    environment = {"ROCKETMQ_HOME": str(root)}
    (root / "namesrv.conf").write_text(
        f"listenPort={names}\nbindAddress=127.0.0.1\nkvConfigPath={root}/kv.json\n"
        f"configStorePath={root}/namesrv.properties\n"
    )
    (root / "broker.conf").write_text(
        f"brokerClusterName=peers\nbrokerName=broker\nbrokerId=0\nnamesrvAddr=127.0.0.1:{names}\n"
        "brokerIP1=127.0.0.1\n"
        f"brokerIP2=127.0.0.1\nbindAddress=127.0.0.1\nlistenPort={broker}\n"
        f"haListenPort={free_port()}\nbrokerRole=ASYNC_MASTER\n"
        f"flushDiskType={setting.name}\nstorePathRootDir={root}/store\n"
        f"storePathCommitLog={root}/store/commitlog\n"
        "autoCreateTopicEnable=false\n"
    )
    log = root / "rocketmq.log"
    namesrv = [
        "java",
        "-Xmx256m",
        *own,
        "org.apache.rocketmq.namesrv.NamesrvStartup",
        "-c",
        str(root / "namesrv.conf"),
    ]
    with server(namesrv, log, environment) as names_pid:
        wait_for_port(names, names_pid, log)
        command = [
            "java",
            *_BROKER,
            *own,
            "org.apache.rocketmq.broker.BrokerStartup",
            "-c",
            str(root / "broker.conf"),
        ]
        with server(command, log, environment) as broker_pid:
            wait_for_port(broker, broker_pid, log)
            addresses = [f"127.0.0.1:{names}", f"127.0.0.1:{broker}"]
            options = [*OPENS, f"-Duser.home={root}", "-Drocketmq.client.logLevel=WARN"]
            load = java.load(
                "rocketmq",
                class_path,
                "RocketMqLoad",
                addresses,
                options=options,
                log=root / "load.log",
            )
            with closing(load):
                message = {"tag": messages.TAG, "body": messages.PAYLOAD}
                works = (
                    Work(
                        row="single",
                        command={**message, "work": "single"},
                        counts=(64, 256),
                        text="send",
                    ),
                    Work(
                        row="batch",
                        command={**message, "work": "batch", "size": 100},
                        counts=(8,),
                        text="a list of 100",
                    ),
                    Work(
                        row="transaction",
                        command={**message, "work": "transaction"},
                        counts=(64, 256),
                        text="sendMessageInTransaction, whose commit is not answered",
                    ),
                )
                yield Running(
                    roots=[names_pid, broker_pid], load=load, command={}, works=works,
                    warm_seconds=_WARM_SECONDS
                )  # fmt: skip
