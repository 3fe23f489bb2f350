"""Stands in for a service: `stub_service.py KIND NAMES PORT_FILE`; the coordinator is a fake."""

from __future__ import annotations

import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

from exspec.client.fake import FakeCoordinator
from exspec.core.cluster import WorkerInfo, WorkerState, WorkerStatus
from exspec.core.ids import Role, WorkerId
from exspec.core.models import ModelFacts

MODEL = ModelFacts("stub", "", 8, 8, "", 64, (), "float32", "cpu", 1, "")


def ready(name):
    role = Role(name.partition("-")[0])
    return WorkerStatus(WorkerInfo(WorkerId(name), "i", role, "h:1", 1, MODEL), WorkerState.READY)


def main(kind, names, port_file):
    stop = threading.Event()
    if kind == "dies":
        sys.stderr.write("loading\nworker.failed reason=no such model\n")
        return 3
    signal.signal(signal.SIGTERM, lambda *_: stop.set() if kind != "stubborn" else None)
    if kind == "coordinator":
        with FakeCoordinator() as fake:
            publish(port_file, fake.address)
            while not stop.wait(0.02):  # a worker is ready once it has published its port
                up = [name for name in names.split(",") if has_published(port_file, name)]
                fake.status = replace(fake.status, workers=tuple(map(ready, up)))
    else:
        publish(port_file, "127.0.0.1:1")
        stop.wait()
    sys.stderr.write("stopped\n")
    return 0


def has_published(port_file, name):
    return Path(port_file).with_name(f"{name}.port").exists()


def publish(port_file, address):
    partial = Path(port_file + ".partial")
    partial.write_text(address)
    partial.replace(port_file)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
