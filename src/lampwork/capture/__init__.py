"""Capture: Python bytecode → `Region`."""

from lampwork.capture.capture import capture
from lampwork.capture.interpreter import CaptureOptions
from lampwork.capture.model.errors import FrameRefused, ProgramRaised

__all__ = ["CaptureOptions", "FrameRefused", "ProgramRaised", "capture"]
