# job.py: submits a durable job, follows its events across disconnects, and prints its result.
# OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_API_KEY=sk-local-development python3 job.py 'Hello there.'
import http.client, json, os, sys, time, urllib.request

def call(path, data=None):
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    return urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, data, headers), timeout=60)

body = {"model": "echo-1", "stream": True, "messages": [{"role": "user", "content": (sys.argv[1:] or ["Hello there."])[0]}]}
job = json.load(call("/jobs", json.dumps({"endpoint": "/v1/chat/completions", "body": body}).encode()))
last, tries = {"sequence_number": 0}, 0
while "job" not in last:  # the last event of a job has the whole job
    try:
        for line in call(f"/jobs/{job['id']}/events?starting_after={last['sequence_number']}"):
            if line.startswith(b"data: ") and "sequence_number" in (event := json.loads(line[6:])):
                last, tries = event, 0
                print(last["type"], last["sequence_number"], file=sys.stderr)
    except (OSError, http.client.HTTPException) as error:  # the connection broke; resume after the last event
        tries += 1
        if tries > 10 or getattr(error, "code", 500) < 429:
            raise  # the request was refused, or the service stays unavailable
        time.sleep(1)
print(call(f"/jobs/{job['id']}/result").read().decode())
