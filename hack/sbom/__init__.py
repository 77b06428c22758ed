"""Writes what our locks install as a bill of materials that scanners read: CycloneDX 1.5."""
