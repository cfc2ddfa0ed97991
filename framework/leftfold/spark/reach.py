"""What a stream of Spark can still read: its source knows topics only, so what lies in an archive alone is a hole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from leftfold.engine.batch_course import BatchCourse
from leftfold.engine.hole import beginning, out_of_reach, unreachable
from leftfold.errors import LogHole
from leftfold.flush import Phase
from leftfold.position import Position
from leftfold.spark.starts import topic_starts

__all__ = ["Reach"]

Report = Callable[[str, Mapping[str, Any]], None]


class Reach:
    """Refuses a stream of one view that would have to read what its topics no longer hold.

    Args:
        kafka: the properties of a Java client. mend: what an operator should do then.
    """

    def __init__(self, spark: SparkSession, kafka: Mapping[str, str], view: str, mend: str) -> None:
        self._spark, self._kafka, self._view, self._mend = spark, kafka, view, mend

    def check(self, wanted: Position) -> None:
        """Checks that the topics which a position names can be read on from there.

        Raises:
            LogHole: they begin behind it.
            InfrastructureError: no broker answers.
        """
        for gone in unreachable(topic_starts(self._spark, wanted.offsets.keys(), self._kafka), wanted):
            raise out_of_reach(self._view, gone, self._mend)

    def within(self, courses: Sequence[BatchCourse], report: Report) -> list[BatchCourse]:
        """The courses that can go on, the live generation's among them; what must be left behind is told.

        Raises:
            LogHole: the live generation, or every one, lies before what the topics hold.
        """
        found, lost = list[BatchCourse](), list[LogHole]()
        for course in courses:
            try:
                self.check(beginning(course.generation.topics) | course.position())
            except LogHole as error:
                if course.generation.phase is Phase.LIVE:
                    raise
                lost.append(error)
                told = {"view": self._view, "generation": course.generation.id, "why": str(error)}
                report("generation left behind", told)
            else:
                found.append(course)
        if lost and not found:
            raise lost[0]
        return found
