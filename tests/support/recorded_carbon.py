"""The carbon of a grid as it was recorded."""

from __future__ import annotations

# California's grid in gCO2/kWh, hour by hour from 2022-04-18 (Hewlett Packard Enterprise's sustain-cluster, MIT licence).
GRAMS_PER_KILOWATT_HOUR = (
    141, 178, 256, 270, 276, 277, 286, 292, 298, 288, 270, 266, 262, 287, 252, 191, 163, 156, 147, 144, 147, 136, 133, 153,
    180, 233, 298, 305, 301, 289, 288, 281, 258, 251, 246, 246, 251, 274, 244, 180, 156, 120, 124, 126, 128, 123, 125, 118,
)  # fmt: skip
