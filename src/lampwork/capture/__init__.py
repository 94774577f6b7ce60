"""Capture: Python bytecode → `Region`."""

from lampwork.capture.breaks import FrameRefused, ProgramRaised
from lampwork.capture.capture import capture
from lampwork.capture.interpreter import CaptureOptions

__all__ = ["CaptureOptions", "FrameRefused", "ProgramRaised", "capture"]
