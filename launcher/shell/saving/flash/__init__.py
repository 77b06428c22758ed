"""The classes that scripts know from DLRover: what they are called with is theirs, what is behind is ours."""
