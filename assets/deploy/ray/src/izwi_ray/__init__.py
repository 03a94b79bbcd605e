"""Izwi on Ray: a Serve application, and archives transcribed or spoken with Ray Data."""

from izwi_ray.process import IzwiProcess

__all__ = ["IzwiProcess"]
