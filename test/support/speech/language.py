"""
Runs the check for English: `language.py CODE SITE WINDOWS DETECTED`. Prints "sure", or the code of another language in quotes.

WINDOWS: a JSON list of [avg_logprob, temperature, no_speech_prob, seconds]. DETECTED: the language that a multilingual model
detects, as JSON; null if there is no such model.
"""

import json
import sys

sys.path[:0] = sys.argv[1:3]
import numpy as np  # noqa: E402
from speech.language_check import LanguageCheck, Window  # noqa: E402

RATE = 16_000
check = LanguageCheck("en", lambda _: json.loads(sys.argv[4]), RATE)
for at, (logprob, temperature, no_speech, seconds) in enumerate(json.loads(sys.argv[3])):
    check.add(Window((0, at), logprob, temperature, no_speech), np.zeros(int(seconds * RATE), np.float32), seconds)
check.finish()
print("sure" if check.other is None else json.dumps(check.other))
