"""The scheduler extender: where should this pod go?"""
