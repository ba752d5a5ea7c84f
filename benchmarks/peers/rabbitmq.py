"""RabbitMQ: one durable queue, persistent messages, publisher confirms, with RabbitMQ's own client
in Java.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks import messages
from benchmarks.generator import NotOffered
from benchmarks.peers import java
from benchmarks.peers.peer import Running, Setting, Work, free_port, server, wait_for_port

name = "RabbitMQ"
settings = (
    Setting(name="quorum", text="quorum queue", durability="synced"),
    Setting(name="classic", text="classic queue, which syncs on a timer", durability="buffered"),
)
_COORDINATES = ["com.rabbitmq:amqp-client:5.25.0", "org.slf4j:slf4j-nop:1.7.36"]
_WARM_SECONDS = 8
_IN_ITS_FOLDER = re.compile(r"rabbitmq_server-([\d.]+)")


def version() -> str:
    program = _program()
    java.jars("rabbitmq", _COORDINATES)
    # rabbitmqctl would leave a port mapper behind
    found = _IN_ITS_FOLDER.search(str(program.resolve()))
    return found[1] if found else "of an unknown version"


def _program() -> Path:
    """The server's own script: Debian's wrapper around it changes the user, who may not write here.

    Raises NotOffered.
    """
    found = shutil.which("rabbitmq-server")
    if not found or not shutil.which("epmd"):
        raise NotOffered("needs rabbitmq-server")
    script = Path(found).resolve()
    return script.with_name("rabbitmq-server") if "wrapper" in script.name else script


@contextmanager
def started(setting: Setting, directory: Path) -> Iterator[Running]:
    root, class_path = directory, java.jars("rabbitmq", _COORDINATES)
    port, mapper, log = free_port(), free_port(), root / "rabbitmq.log"
    (root / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port}\nlog.console.level = warning\n"
    )
    (root / "enabled_plugins").write_text("[].\n")
    environment = {
        "RABBITMQ_CONFIG_FILE": str(root / "rabbitmq.conf"),
        "RABBITMQ_MNESIA_BASE": str(root / "mnesia"),
        "RABBITMQ_LOG_BASE": str(root / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(root / "enabled_plugins"),
        "RABBITMQ_PID_FILE": str(root / "pid"),
        "RABBITMQ_NODENAME": "peers@localhost",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(mapper),
        "HOME": str(root),
    }
    # The port mapper of its own: the node would leave one behind.
    with server(["epmd", "-address", "127.0.0.1", "-port", str(mapper)], log) as mapper_pid:
        wait_for_port(mapper, mapper_pid, log)
        with server([_program()], log, environment) as pid:
            wait_for_port(port, pid, log)
            arguments = [str(port), setting.name]
            with closing(
                java.load(
                    "rabbitmq",
                    class_path,
                    "RabbitMqLoad",
                    arguments,
                    options=[],
                    log=root / "load.log",
                )
            ) as load:
                message = {
                    "key": messages.KEY,
                    "tag": messages.TAG,
                    "body": messages.PAYLOAD,
                    "work": "publish",
                }
                works = (
                    Work(
                        row="single",
                        command={**message, "size": 1},
                        counts=(64, 256),
                        text="publish, confirmed; a channel each",
                    ),
                    Work(
                        row="batch",
                        command={**message, "size": 100},
                        counts=(8,),
                        text="100 publishes, then their confirms",
                    ),
                )
                yield Running(
                    roots=[pid], load=load, command={}, works=works, warm_seconds=_WARM_SECONDS
                )
