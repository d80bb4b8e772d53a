"""Submits a durable job, follows it over lost connections, and prints its result: `python3 job.py 'Hello there.'`. Python 3.10 or newer."""
import http.client, json, os, sys, time, urllib.error, urllib.request

URL = os.environ.get("SLUICE_URL", "http://127.0.0.1:8080")
HEADERS = {"Authorization": f"Bearer {os.environ.get('SLUICE_API_KEY')}", "Content-Type": "application/json"}


def call(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.urlopen(urllib.request.Request(URL + path, data, HEADERS), timeout=60)


def follow(job_id):
    """Gives each event of a job once, in order, and ends with the last. A broken connection is made again where it broke."""
    last = 0
    while True:
        try:
            with call(f"/v1/jobs/{job_id}/events?starting_after={last}") as lines:
                if lines.status == 204:  # nothing comes after the last one
                    return
                for line in lines:
                    if line.startswith(b"data: "):
                        event = json.loads(line[6:])
                        yield event
                        last = event.get("sequence_number", last)
                        if "job" in event:
                            return
        except urllib.error.HTTPError as error:
            if error.code < 429:
                raise
        except (OSError, http.client.HTTPException):
            pass  # the connection broke
        time.sleep(1)


if __name__ == "__main__":
    messages = [{"role": "user", "content": sys.argv[1] if len(sys.argv) > 1 else "Hello there."}]
    body = {"model": "echo-1", "stream": True, "messages": messages}
    job = json.load(call("/v1/jobs", {"endpoint": "/v1/chat/completions", "body": body}))
    for event in follow(job["id"]):
        print(event.get("sequence_number"), event["type"], file=sys.stderr)
    print(call(f"/v1/jobs/{job['id']}/result").read().decode())
