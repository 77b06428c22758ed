"""Agents that form worlds over real sockets in many processes of one machine, and jobs whose parts are killed."""
