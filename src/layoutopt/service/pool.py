"""Worker processes behind a bounded queue."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from layoutopt.service.settings import Settings
from layoutopt.service.work import answer, warm

GRACE_S = 15.0
"""Seconds that a request may take beyond its search: reading, pricing, explaining."""


class Full(Exception):
    """As many requests wait as may."""


class TookTooLong(Exception):
    """A request has not come back within its limit and the grace."""


class Pool:
    """Requests in order of arrival, ``workers`` at a time, at most ``queue`` waiting."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pending = 0
        self._executor = self._new()

    def _new(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            max_workers=self.settings.workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=warm,
        )

    async def run(self, command: str, options: Mapping[str, Any]) -> tuple[int, str]:
        """Status and text of a request; raises Full or TookTooLong."""
        if self.pending >= self.settings.workers + self.settings.queue:
            raise Full
        self.pending += 1
        try:
            return await self._run(command, options)
        finally:
            self.pending -= 1

    async def _run(self, command: str, options: Mapping[str, Any]) -> tuple[int, str]:
        seconds = self.settings.most_seconds
        ahead = 1 + self.pending // self.settings.workers
        limit = ahead * (seconds + GRACE_S)
        for last in (False, True):
            executor = self._executor
            work = asyncio.get_running_loop().run_in_executor(
                executor, answer, command, dict(options), seconds
            )
            try:
                return await asyncio.wait_for(work, limit)
            except TimeoutError as error:
                raise TookTooLong from error
            except BrokenProcessPool:
                # A worker was killed: new ones take the request once more.
                if self._executor is executor:
                    self._executor = self._new()
                if last:
                    raise
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Ends the workers; what they work on is finished, within its time limit."""
        self._executor.shutdown(wait=True, cancel_futures=True)
