"""Read one gang from the view for the planner: the request for its place, and the gangs that go with it."""
