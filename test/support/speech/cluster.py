"""
Assigns pieces of speech to speakers: `cluster.py CODE SITE PIECES NAMES`. Prints the labels of the speakers as JSON.

The voices of this test are points on a circle. PIECES: a JSON list of [degrees, seconds, track]. NAMES: a JSON object with
the degrees of each known voice by name. A voice gets the name of the nearest known voice, if there is one.
"""

import json
import sys

sys.path[:0] = sys.argv[1:3]
import numpy as np  # noqa: E402
from speakers.clustering import Voice, groups_of, tell_apart  # noqa: E402


def vector(degrees):
    angle = np.radians(degrees)
    return np.array([np.cos(angle), np.sin(angle)], np.float32)


voices = [Voice(seconds, (0, track), vector(degrees)) for degrees, seconds, track in json.loads(sys.argv[3])]
known = json.loads(sys.argv[4])


def name_of(voice):
    return max(known, key=lambda name: float(voice @ vector(known[name])), default=None)


half = len(voices) // 2
labels, _ = tell_apart(groups_of(voices[:half], name_of) + groups_of(voices[half:], name_of), voices, name_of)
print(json.dumps(labels.tolist()))
