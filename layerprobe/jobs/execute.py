"""Runs a plan of jobs on a crew: the one loop over jobs. Does not know what a job is.

What is there is not done again; a job that another process is at is put off; one whose worker is lost is begun again; a
failure is a value, and the caller decides what follows from it.
"""

import collections
import contextlib
import logging
import time
from collections.abc import Collection, Generator, Iterator
from typing import Any, Generic, TypeVar

from layerprobe.context import part, report
from layerprobe.errors import LayerProbeError, LostWorkerError
from layerprobe.jobs.crew import Crew, Message, Plan

logger = logging.getLogger(__name__)

J = TypeVar("J")
A = TypeVar("A")

PAUSE = 0.5
"""Seconds before a job that could not be done is tried again."""


def execute(
    plan: Plan[J, A], crew: Crew, *, done: Collection[J] | None = None, reports: bool = True
) -> Generator[tuple[J, A | LayerProbeError], None, None]:
    """Run the unfinished jobs of a plan; yield each with its answer, or why there is none, as it ends.

    What is there comes first, where it is not known to the caller. Jobs that are added to the plan while its jobs are
    done are done, too.
    Close the generator to end all workers early. The failure of a job whose workers were all killed, or that raised
    what nobody expected, is a `LostWorkerError`.

    Args:
        plan: What is to be done.
        crew: Who does it; a crew can be given one plan after another.
        done: The jobs that are there, which are left out; by default the plan is asked, and they are given.
        reports: Whether what costs are done, of all, is reported; False where the caller does that.
    """
    queue = _Queue(plan, done, crew)
    finished = sum(plan.jobs[job] for job in done or ())
    try:
        while True:
            for job, answer in queue.admitted():
                finished += plan.jobs[job]
                yield job, answer
            if not queue.left:
                break
            whole = sum(plan.jobs.values())
            crew.hire(queue.left if queue else 0)  # where none waits, no further worker is of use
            for worker in crew.workers:
                if worker.ready and not worker.jobs and (taken := queue.take()):
                    worker.jobs, worker.done = taken, 0.0
                    cost = plan.jobs[taken[0]]
                    within = part(start=finished, share=cost, whole=whole) if reports else contextlib.nullcontext()
                    crew.give(worker, plan.sent(taken[0]), within)
            idle = any(worker.ready and not worker.jobs for worker in crew.workers)
            for message in crew.messages(queue.seconds_to_next() if idle else None):
                if message.kind == "progress":
                    message.worker.done = message.value
                    if reports:
                        report(plan.unit, finished + _begun(plan, crew), whole)
                    continue
                for job, outcome in queue.taken(message):
                    finished += plan.jobs[job]
                    if reports and not crew.inside:
                        report(plan.unit, finished + _begun(plan, crew), whole)
                    yield job, outcome
    finally:
        if queue.left:
            crew.close()


def _begun(plan: Plan[Any, Any], crew: Crew) -> float:
    """Return how much is done of the jobs that workers are at."""
    return float(sum(worker.done * plan.jobs[job] for worker in crew.workers for job in worker.jobs))


def results(plan: Plan[J, A], crew: Crew) -> dict[J, A]:
    """Return the result of every job of a plan, in its order."""
    answers = {}
    for job, outcome in execute(plan, crew):
        if isinstance(outcome, LayerProbeError):
            raise outcome
        answers[job] = outcome
    return {job: answers[job] for job in plan.jobs}


class _Queue(Generic[J, A]):
    """Jobs that no worker has taken, and how many are unfinished."""

    def __init__(self, plan: Plan[J, A], done: Collection[J] | None, crew: Crew) -> None:
        self.plan, self.crew = plan, crew
        self._jobs: collections.deque[J] = collections.deque()
        self._known = set(done or ())
        self._asks = done is None
        self.left = 0
        """Without those that are done or lost."""
        self._later: collections.deque[tuple[float, J]] = collections.deque()
        """Jobs that could not be done, and from when on they are tried again."""
        self._lost: collections.Counter[J] = collections.Counter()
        self._waited_for: set[J] = set()

    def admitted(self) -> Iterator[tuple[J, A]]:
        """Take new jobs of the plan; yield those that are finished already."""
        while new := [job for job in self.plan.jobs if job not in self._known]:
            self._known.update(new)
            finished = {job: self.plan.done(job) for job in new} if self._asks else {}
            missing = [job for job in new if finished.get(job) is None]
            self._jobs.extend(missing if self.crew.inside else sorted(missing, key=lambda job: -self.plan.jobs[job]))
            self.left += len(missing)
            yield from ((job, answer) for job, answer in finished.items() if answer is not None)

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._jobs or self._later)

    def take(self) -> list[J]:
        """Return the next job; none where there is none, or it is too early for those that are put off."""
        if self._jobs:
            return [self._jobs.popleft()]
        if self._later and self._later[0][0] <= time.monotonic():
            return [self._later.popleft()[1]]
        if self._later and (job := self._later[0][1]) not in self._waited_for:
            self._waited_for.add(job)
            logger.info("waiting for another process that %s", self.plan.label(job))
        return []

    def seconds_to_next(self) -> float | None:
        """Return in how many seconds a job that is put off is tried again; None where there is none."""
        return max(self._later[0][0] - time.monotonic(), 0.0) if self._later else None

    def taken(self, message: Message) -> Iterator[tuple[J, A | LayerProbeError]]:
        """Take what came of a worker; give its job where that is done, or cannot be."""
        worker, kind, value = message.worker, message.kind, message.value
        if kind == "ready":
            worker.ready = True
            return
        jobs, worker.jobs = worker.jobs, []
        if kind not in ("answer", "failed") or not worker.ready:
            self.crew.dismiss(message)
        for job in jobs:
            if kind == "answer" and value is None:
                self._later.append((time.monotonic() + PAUSE, job))
            elif kind == "unfit":  # it is not the job's fault
                self._jobs.append(job)
            elif kind == "ended" and self._is_begun_again(job):
                code = f" (exit code {value})" if isinstance(value, int) else ""
                logger.warning("%s ended%s: its run is begun again", worker.name, code)
            else:
                self.left -= 1
                yield job, value if kind in ("answer", "failed") else _lost(kind, value)

    def _is_begun_again(self, job: J) -> bool:
        self._lost[job] += 1
        if again := self._lost[job] < self.crew.tries:
            self._jobs.append(job)
        return again


def _lost(kind: str, value: Any) -> LostWorkerError:
    """Return the answer for a job whose workers were all lost."""
    if kind == "raised":
        logger.error("%s", value)
        return LostWorkerError(f"an error that was not expected: {value.splitlines()[-1]}")
    how = "again and again"
    if isinstance(value, int):
        how = f"twice ({f'signal {-value}' if value < 0 else f'exit code {value}'})"
    return LostWorkerError(f"its process was ended {how}: if memory ran out, use fewer workers or a smaller batch")
