"""A projector of a project that stays on the list of projectors for ten minutes after it last showed itself."""

from __future__ import annotations

import signal
import threading

from leftfold.engine.views.projector import Projector
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.redis import RedisViewStore
from leftfold.runtime.connect import kafka_settings, redis_settings
from leftfold.runtime.project import load_app

LEASE = 600.0


def main() -> None:
    """Follows the project's views until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    kafka, store = kafka_settings(), RedisViewStore(redis_settings())
    projector = Projector(load_app("").views, lambda: KafkaLogReader(kafka), store, lease=LEASE)
    while not stop.is_set():
        projector.step()
    projector.close()
    store.close()


if __name__ == "__main__":
    main()
