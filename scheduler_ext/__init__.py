"""The adviser: where should this pod go?"""
