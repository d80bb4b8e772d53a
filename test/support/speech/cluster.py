"""
Who speaks in windows whose voices are points on a circle: `cluster.py CODE SITE DEGREES NAMES`, prints labels as JSON.

DEGREES: a JSON list, a window each. NAMES: a JSON object of known voices, degrees by name; a voice has the nearest
name, if there are any.
"""

import json
import sys

sys.path[:0] = sys.argv[1:3]
import numpy as np  # noqa: E402
from speakers.clustering import merge_block, tell_apart  # noqa: E402


def voices(degrees):
    angles = np.radians(np.array(degrees, np.float32))
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


windows = voices(json.loads(sys.argv[3]))
known = json.loads(sys.argv[4])


def name_of(voice):
    return max(known, key=lambda name: float(voice @ voices([known[name]])[0]), default=None)


half = len(windows) // 2
groups = merge_block(windows[:half], 0) + merge_block(windows[half:], half)
print(json.dumps(tell_apart(groups, windows, name_of).tolist()))
