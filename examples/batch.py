"""Runs the lines of a file as prompts of one batch, and prints their answers: `python3 batch.py < prompts.txt`. Python 3.10 or newer."""
import json, os, sys, time, urllib.request

URL = os.environ.get("SLUICE_URL", "http://127.0.0.1:8080")
HEADERS = {"x-api-key": os.environ.get("SLUICE_API_KEY", ""), "Content-Type": "application/json"}


def call(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.urlopen(urllib.request.Request(URL + path, data, HEADERS), timeout=60)


requests = [
    {"custom_id": f"line-{number}",
     "params": {"model": "echo-1", "max_tokens": 100, "messages": [{"role": "user", "content": line.strip()}]}}
    for number, line in enumerate(sys.stdin, start=1)
]
batch = json.load(call("/v1/messages/batches", {"requests": requests}))
while batch["processing_status"] != "ended":
    time.sleep(1)
    batch = json.load(call(f"/v1/messages/batches/{batch['id']}"))
print(batch["request_counts"], file=sys.stderr)
for line in call(f"/v1/messages/batches/{batch['id']}/results"):
    each = json.loads(line)
    answer = each["result"].get("message", {}).get("content") or each["result"]
    print(each["custom_id"], json.dumps(answer))
