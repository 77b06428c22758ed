"""The ConfigMap by which nodes are reserved, as an API server shows it to the programs that watch it."""

import msgspec

from turnout.kube.errors import NotFound


class ReservationMap:
    """The ConfigMap. watchers: the WatchState of each program. fault: raised by each write while it is set."""

    def __init__(self, *watchers):
        self.data, self.watchers, self.fault = None, list(watchers), None

    async def create(self, path, body):
        """Create it."""
        return self._change({}, body["data"])

    async def patch(self, path, body, content_type=None, field_manager=None):
        """Merge keys. Raises NotFound before it is created."""
        if self.data is None and self.fault is None:
            raise NotFound("PATCH", path, 404, "gone")
        return self._change(self.data, body["data"])

    def show(self, watcher):
        """Show it to one more program."""
        self.watchers.append(watcher)
        watcher.put_reservations(self.data or {})

    def _change(self, before, keys):
        if self.fault is not None:
            raise self.fault
        self.data = {key: text for key, text in {**before, **keys}.items() if text is not None}
        for each in self.watchers:
            each.put_reservations(self.data)
        return msgspec.json.encode({"data": self.data})
