"""The event loop of asyncio where there are no sockets and no threads: timers and tasks.

Everything of `asyncio` that is made of coroutines, tasks, futures, timers, queues and locks works.
"""

import asyncio
import asyncio.base_events
import time


class _Sleep:
    """In place of a selector: nothing is ever ready but time."""

    @staticmethod
    def select(timeout):
        if timeout is None:
            raise RuntimeError(
                "asyncio: every task waits and nothing can wake one; this Python has no sockets, threads or processes"
            )
        if timeout > 0:
            time.sleep(timeout)
        return ()


class Loop(asyncio.base_events.BaseEventLoop):
    """What `asyncio.run` and `asyncio.new_event_loop` make."""

    def __init__(self):
        super().__init__()
        self._selector = _Sleep

    def _process_events(self, events):
        pass

    def _write_to_self(self):
        pass

    async def shutdown_default_executor(self, timeout=None):
        # Joining threads that could not be started would itself start one.
        self._executor_shutdown_called = True
