"""Parts of a model on the devices where they are fastest: `lampwork.place`."""

from __future__ import annotations

from lampwork.placement.devices import Absent, Device
from lampwork.placement.place import PlacedModel, place
from lampwork.placement.plan import CopyPlan, PartPlan, PlacementPlan, WholePlan

__all__ = ["Absent", "CopyPlan", "Device", "PartPlan", "PlacedModel", "PlacementPlan", "WholePlan", "place"]
