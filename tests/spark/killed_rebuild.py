"""A rebuild in a process of its own, which is killed inside one of its writes to Redis."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial

from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.redis import RedisBulkSink, RedisSettings, RedisViewStore
from tests.domains.ledger import app
from tests.servers import patient

FOLD = "tests"


class Fatal(RedisBulkSink):
    """A sink whose process is killed at one of its writes; it counts those of all sinks."""

    sent = 0
    last = 0

    def _send(self, checkpoint: bytes, commands: list[bytes]) -> None:
        Fatal.sent += 1
        if Fatal.sent == Fatal.last:
            # What is written is in a transaction that never ends.
            super()._send(checkpoint, commands[: len(commands) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        super()._send(checkpoint, commands)


def main(kafka: str, redis: str, view: str, last: int) -> None:
    """Rebuilds a view and prints how often it wrote, unless it is killed before."""
    Fatal.last = last
    settings, of_redis = patient(kafka), RedisSettings(url=redis)
    store = RedisViewStore(of_redis)
    rebuild = Rebuild(
        app.view(view),
        store,
        open_log=partial(KafkaBulkLog, settings),
        open_reader=partial(KafkaLogReader, settings),
        open_sink=partial(Fatal, of_redis),
        options=RebuildOptions(keep=0, fold=FOLD, hold=last < 0),
    )
    rebuild.run()
    store.close()
    print(Fatal.sent)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
