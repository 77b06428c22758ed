"""The collectives that ranks call: what torch's Flight Recorder has of them, and who has not come to which."""
