"""Runs the lines of a file as prompts of one batch, and prints their answers: `python3 batch.py MODEL < prompts.txt`. Python 3.10 or newer."""
import http.client, json, os, sys, time, urllib.error, urllib.request

URL = os.environ.get("SLUICE_URL", "http://127.0.0.1:8080")
HEADERS = {"x-api-key": os.environ.get("SLUICE_API_KEY", ""), "Content-Type": "application/json"}
MODEL = (sys.argv[1:] or ["echo-1"])[0]


def call(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.urlopen(urllib.request.Request(URL + path, data, HEADERS), timeout=60).read()


def get(path, tries=60):
    """The answer to a GET, also while the service is being started again: the batch goes on."""
    for left in reversed(range(tries)):
        try:
            return call(path)
        except (OSError, http.client.HTTPException) as error:
            if left == 0 or getattr(error, "code", 500) < 429:
                raise  # the request was refused, or the service stays unavailable
            time.sleep(1)


requests = [
    {"custom_id": f"line-{number}",
     "params": {"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": line.strip()}]}}
    for number, line in enumerate(sys.stdin, start=1)
]
try:
    batch = json.loads(call("/v1/messages/batches", {"requests": requests}))
except urllib.error.HTTPError as error:
    sys.exit(error.read().decode())  # the error message of the service
print(batch["id"], file=sys.stderr)
while batch["processing_status"] != "ended":
    time.sleep(1)
    batch = json.loads(get(f"/v1/messages/batches/{batch['id']}"))
print(batch["request_counts"], file=sys.stderr)
for line in get(f"/v1/messages/batches/{batch['id']}/results").splitlines():
    each = json.loads(line)
    answer = each["result"].get("message", {}).get("content") or each["result"]
    print(each["custom_id"], json.dumps(answer))
