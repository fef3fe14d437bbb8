"""The workload of a group's round, through a mirror of each source alone: how often does a reader
of them all find another total, or a transfer in part? A measurement, without violations.

The tables are read afterwards, as of each moment at which one of the mirrors published a cut: four
jobs of Spark leave a reader beside them no processor.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

from chaos.group.checker_process import CheckerProcess
from chaos.group.mirrored import catalog_of
from chaos.group.trial import GroupResult, GroupTrial, wait_for_words
from chaos.mirror import MirrorJob


class ApartTrial(GroupTrial):
    """Without faults: what is wrong here is so on a quiet day."""

    def run(self) -> GroupResult:
        self.folder.mkdir(parents=True)
        with ExitStack() as ending:
            sources = self._sources(ending)
            coordinator = self._coordinator(sources)
            jobs = {prefix: self._mirror(prefix) for prefix in self.members}
            self._start_coordinator(coordinator, ending)
            self._join(sources, self.members, ending)
            sources[0].publish("part")
            for job in jobs.values():
                job.keeper.start()
                ending.callback(job.keeper.close)
            for job in jobs.values():
                wait_for_words(job.keeper, ", cut ")
            environment = jobs[self.members[0]].environment
            checker = ending.enter_context(
                CheckerProcess(self.folder, self.servers, self.members, self.folder, environment, "--apart")
            )
            begun = time.time()
            threading.Event().wait(self.seconds)
            for keeper in (coordinator, *(job.keeper for job in jobs.values())):
                keeper.close()
            found = checker.end(begun, time.time())
        return GroupResult(self.plan.seed, self.seconds, len(self.members), looks=found["looks"], wrong=found["wrong"])

    def _mirror(self, prefix: str) -> MirrorJob:
        folder = self.folder / prefix
        folder.mkdir()
        kafka, registry = self.servers.kafka.bootstrap, self.servers.registry_url
        return MirrorJob(folder, kafka, registry, [prefix], self.environment, "--catalog", catalog_of(prefix))
